"""NVIDIA and AMD GPUs, which torch both calls cuda."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, final

from accel_state.devices._base import Device
from accel_state.errors import CannotRun

if TYPE_CHECKING:
    import torch


@final
class Cuda(Device):
    """The GPU whose index is the rank of the process on its machine."""

    kind: ClassVar[str] = "cuda"

    @property
    def group_backend(self) -> str:
        """NCCL for tensors on the GPU, gloo for tensors and objects on the CPU."""
        return "cpu:gloo,cuda:nccl"

    @property
    def step_boundary(self) -> Callable[[], None] | None:
        """None: operations run as they come."""
        return None

    def place(self, local_rank: int) -> torch.device:
        """`cuda:<local rank>`, or the only GPU that this process sees; made the current one.

        Raises: CannotRun when the machine shows fewer GPUs than processes.
        """
        import torch

        count = torch.cuda.device_count()
        if count == 1:
            local_rank = 0  # each process is shown an accelerator of its own, as srun --gpus-per-task=1 does
        if local_rank >= count:
            raise CannotRun(
                f"process {local_rank} of this machine needs GPU {local_rank}",
                [f"torch sees {count}; start at most {count} processes a machine, or ask for the CPU (cpu=True)"],
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)

    def rng_state(self) -> torch.Tensor:
        """The state of the current GPU's default generator."""
        import torch

        return torch.cuda.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Sets the current GPU's default generator."""
        import torch

        torch.cuda.set_rng_state(state)

    def release_memory(self) -> None:
        """Empties the cache of the GPU's allocator."""
        import torch

        torch.cuda.empty_cache()


DEVICE = Cuda
