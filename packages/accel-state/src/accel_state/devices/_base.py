"""The questions that accel asks of hardware."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from accel_state.topology import Topology


class Device(ABC):
    """A kind of hardware as a process sees it."""

    #: torch's name for it
    kind: str
    #: what has to be called after each optimizer step; None if operations run as they come
    step_boundary: Callable[[], None] | None = None

    def join(self, topology: Topology) -> None:  # noqa: B027 # most devices leave it to the process group
        """Take the place of this process among the others, before it is placed.

        Args:
            topology: Rank of this process.

        Raises:
            CannotRun: If the runtime of the device connects other processes than the launcher has started.
        """

    @property
    @abstractmethod
    def group_backend(self) -> str:
        """The torch.distributed backend that serves this device and the CPU."""

    @abstractmethod
    def place(self, local_rank: int | None) -> torch.device:
        """Make a device current, and return it.

        Args:
            local_rank: Rank of this process on its machine; None if it is alone there and keeps its device.
        """

    @abstractmethod
    def hardware_id(self, placed_on: torch.device) -> str | None:
        """Return the identity of the hardware behind a device, or None if processes may share it or it is unknown."""

    @abstractmethod
    def rng_state(self) -> torch.Tensor:
        """Return the state of this device's default generator, as bytes on the CPU."""

    @abstractmethod
    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put the default generator of this device into a state that `rng_state` has returned."""

    @abstractmethod
    def release_memory(self) -> None:
        """Give memory that nothing uses any more back to the system."""
