"""The kinds of hardware: one a file; torch is imported when a device is chosen."""

from collections.abc import Mapping

from accel_state.devices._base import Device
from accel_state.errors import CannotRun
from accel_state.registry import Registry

DEVICES: Registry[type[Device]] = Registry(__name__, "accel.devices", "DEVICE")


def choose(*, cpu: bool, environ: Mapping[str, str] | None = None) -> Device:
    """The accelerator that torch finds, or the CPU when there is none or `cpu` asks for it.

    Raises: CannotRun when the environment asks for XLA (PJRT_DEVICE) and nothing here serves it.
    """
    if cpu:
        return DEVICES.load("cpu")()
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None:
        return DEVICES.load(found.type if found.type in DEVICES.names() else "generic")()
    platform = (environ or {}).get("PJRT_DEVICE")
    if platform is None:
        return DEVICES.load("cpu")()
    if "xla" not in DEVICES.names():
        raise CannotRun(
            f"PJRT_DEVICE={platform}", ["no device here serves XLA yet; unset it, or ask for the CPU (cpu=True)"]
        )
    return DEVICES.load("xla")()


__all__ = ["DEVICES", "Device", "choose"]
