"""A device for GPUs and other accelerators that torch itself names: cuda (NVIDIA and AMD), xpu, npu, mps and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from accel_state.devices._base import Device
from accel_state.errors import CannotRun

if TYPE_CHECKING:
    import torch


@final
class TorchAccelerator(Device):
    """The accelerator behind `torch.accelerator`, under torch's own name for it.

    The constructor raises CannotRun if torch finds none.
    """

    def __init__(self) -> None:
        import torch

        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None:
            raise CannotRun("an accelerator", ["torch finds none; ask for the CPU (cpu=True)"])
        self.kind = accelerator.type
        self._module: Any = torch.get_device_module(accelerator)

    @property
    def group_backend(self) -> str:
        """The backend of torch for the accelerator (NCCL for GPUs), and gloo for tensors and objects on the CPU."""
        import torch.distributed

        return f"cpu:gloo,{self.kind}:{torch.distributed.get_default_backend_for_device(self.kind)}"

    def place(self, local_rank: int | None) -> torch.device:
        """Make the accelerator with the index of this process on its machine current, or the only one that it sees.

        A process that is alone on its machine keeps the accelerator that its script has chosen.

        Args:
            local_rank: Rank of this process on its machine; None if it is alone there.

        Raises:
            CannotRun: If the process sees several accelerators, but fewer than the machine has processes.
        """
        import torch

        count = torch.accelerator.device_count()
        wanted = 0 if count == 1 else local_rank  # the one that srun --gpus-per-task=1 shows this process
        index = torch.accelerator.current_device_index() if wanted is None else wanted
        if index >= count:
            name = "GPU " if self.kind == "cuda" else f"{self.kind}:"
            raise CannotRun(
                f"process {index} of this machine needs {name}{index}",
                [f"torch sees {count}; start at most {count} processes a machine, or ask for the CPU (cpu=True)"],
            )
        torch.accelerator.set_device_index(index)
        return torch.device(self.kind, index)

    def hardware_id(self, placed_on: torch.device) -> str | None:
        """Return the UUID of the accelerator, or None if torch does not know it."""
        if not hasattr(self._module, "get_device_properties"):
            return None
        properties = self._module.get_device_properties(placed_on)
        return str(properties.uuid) if hasattr(properties, "uuid") else None

    def rng_state(self) -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state()
        return state

    def set_rng_state(self, state: torch.Tensor) -> None:
        self._module.set_rng_state(state)

    def release_memory(self) -> None:
        self._module.empty_cache()


DEVICE = TorchAccelerator
