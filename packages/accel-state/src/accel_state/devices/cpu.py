"""A device for the CPU, which is always there."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from accel_state.devices._base import Device

if TYPE_CHECKING:
    import torch


@final
class Cpu(Device):
    """The processor that runs Python itself."""

    kind = "cpu"

    @property
    def group_backend(self) -> str:
        return "gloo"

    def place(self, local_rank: int | None) -> torch.device:
        import torch

        return torch.device("cpu")

    def hardware_id(self, placed_on: torch.device) -> str | None:
        """Return None: any number of processes share the CPU."""
        return None

    def rng_state(self) -> torch.Tensor:
        import torch

        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        import torch

        torch.set_rng_state(state)

    def release_memory(self) -> None:
        """Do nothing: the allocator of the CPU keeps no cache of its own."""


DEVICE = Cpu
