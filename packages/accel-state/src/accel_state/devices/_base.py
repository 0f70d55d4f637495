"""The questions that accel asks of hardware."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Device(ABC):
    """A kind of hardware as a process sees it."""

    #: torch's name for it
    kind: str
    #: what has to be called after each optimizer step; None if operations run as they come
    step_boundary: Callable[[], None] | None = None

    @property
    @abstractmethod
    def group_backend(self) -> str:
        """The torch.distributed backend that serves this device and the CPU."""

    @abstractmethod
    def place(self, local_rank: int | None) -> torch.device:
        """The device of the process with this rank on its machine, made current; alone it keeps its own."""

    @abstractmethod
    def hardware_id(self, placed_on: torch.device) -> str | None:
        """The identity of the hardware behind a device; None if processes may share it, or if it is unknown."""

    @abstractmethod
    def rng_state(self) -> torch.Tensor:
        """The state of this device's default generator, as bytes on the CPU."""

    @abstractmethod
    def set_rng_state(self, state: torch.Tensor) -> None:
        """Puts the default generator of this device into the state that `rng_state` found."""

    @abstractmethod
    def release_memory(self) -> None:
        """Gives memory that nothing uses any more back to the system."""
