"""The kinds of hardware, each in a file: torch is imported when a device is chosen."""

from collections.abc import Mapping

from accel_state.devices._base import Device
from accel_state.registry import Registry

DEVICES: Registry[type[Device]] = Registry(__name__, "accel.devices", "DEVICE")


def choose(*, cpu: bool, environ: Mapping[str, str] | None = None) -> Device:
    """Return the accelerator that torch finds, or else XLA if PJRT_DEVICE is set, or else the CPU.

    Args:
        cpu: Whether to choose the CPU.
        environ: The environment.

    Raises:
        CannotRun: If the environment asks for XLA (PJRT_DEVICE) and torch_xla is not installed.
    """
    if cpu:
        return DEVICES.load("cpu")()
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        return DEVICES.load(accelerator.type if accelerator.type in DEVICES.names() else "torch_accelerator")()
    return DEVICES.load("xla" if "PJRT_DEVICE" in (environ or {}) else "cpu")()


__all__ = ["DEVICES", "Device", "choose"]
