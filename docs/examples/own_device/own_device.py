"""A device of one's own: a CPU that gives unused memory back to the system, which accel's own does not.

python -m pip install ./docs/examples/own_device
PYTHONPATH=tests-integration/tools python -m conformance --device cpu -n 2
"""

import ctypes
import platform
from typing import final

import torch
from accel_state import Device


@final
class CpuThatReturnsMemory(Device):
    """Runs on the CPU. `Accelerator.free_memory` asks the C library to return the pages that nothing uses."""

    kind = "cpu"

    @property
    def group_backend(self) -> str:
        """The backend of torch.distributed that carries tensors of this device."""
        return "gloo"

    def place(self, local_rank: int | None) -> torch.device:
        """The device of this process. Hardware with several devices makes the one of `local_rank` current."""
        return torch.device("cpu")

    def hardware_id(self, placed_on: torch.device) -> str | None:
        """None, as processes may share a CPU. Of other hardware the serial number, which no two processes may have."""
        return None

    def rng_state(self) -> torch.Tensor:
        """What a checkpoint keeps of the generator."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """What `load_state` does with it."""
        torch.set_rng_state(state)

    def release_memory(self) -> None:
        """Returns unused memory to the system, where the C library is glibc."""
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)
