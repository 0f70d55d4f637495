"""Any accelerator that torch names and no file of its own serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, final

from accel_state.devices._base import Device
from accel_state.errors import CannotRun

if TYPE_CHECKING:
    import torch


@final
class Generic(Device):
    """The accelerator behind `torch.accelerator`, whatever it is called."""

    kind: ClassVar[str] = "generic"

    @property
    def group_backend(self) -> str:
        """torch's own backend for the accelerator, and gloo for the CPU."""
        import torch.distributed

        kind = self._found().type
        own = torch.distributed.get_default_backend_for_device(kind)
        return f"cpu:gloo,{kind}:{own}"

    @property
    def step_boundary(self) -> Callable[[], None] | None:
        """None: operations run as they come."""
        return None

    def place(self, local_rank: int) -> torch.device:
        """The accelerator with the index of this process on its machine, or the only one that it sees.

        Raises: CannotRun when the machine has fewer accelerators than processes.
        """
        import torch

        count = torch.accelerator.device_count()
        kind = self._found().type
        if count == 1:
            local_rank = 0  # each process is shown an accelerator of its own, as srun --gpus-per-task=1 does
        if local_rank >= count:
            raise CannotRun(
                f"process {local_rank} of this machine needs {kind}:{local_rank}",
                [f"torch finds {count} here; start at most {count} processes a machine, or ask for the CPU (cpu=True)"],
            )
        torch.accelerator.set_device_index(local_rank)
        return torch.device(kind, local_rank)

    def rng_state(self) -> torch.Tensor:
        """The state of the current accelerator's default generator."""
        import torch

        state: torch.Tensor = torch.get_device_module(self._found()).get_rng_state()
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Sets the current accelerator's default generator."""
        import torch

        torch.get_device_module(self._found()).set_rng_state(state)

    def release_memory(self) -> None:
        """Empties the accelerator's cache of memory."""
        import torch

        torch.get_device_module(self._found()).empty_cache()

    @staticmethod
    def _found() -> torch.device:
        import torch

        found = torch.accelerator.current_accelerator()
        if found is None:
            raise CannotRun("an accelerator", ["torch finds none; ask for the CPU (cpu=True)"])
        return found


DEVICE = Generic
