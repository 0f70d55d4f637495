"""The kinds of hardware: one a file; torch is imported when a device is chosen."""

from accel_state.devices._base import Device
from accel_state.errors import CannotRun
from accel_state.registry import Registry

DEVICES: Registry[type[Device]] = Registry(__name__, "accel.devices", "DEVICE")


def choose(*, cpu: bool) -> Device:
    """The accelerator that torch finds, or the CPU when there is none or `cpu` asks for it.

    Raises: CannotRun when a platform is asked for that nothing here serves.
    """
    if cpu:
        return DEVICES.load("cpu")()
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        return DEVICES.load("cpu")()
    name = found.type if found.type in DEVICES.names() else "generic"
    return DEVICES.load(name)()


__all__ = ["DEVICES", "CannotRun", "Device", "choose"]
