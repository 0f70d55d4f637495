"""What a library does to a DataLoader, as the rows ask for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader


class Library(ABC):
    """A library that prepares loaders. It is imported when something is asked of it, not before.

    Raises: Skipped, from every method, where the library or the ability is missing.
    """

    @abstractmethod
    def prepared(self, loader: DataLoader[Any], *, dispatch_batches: bool | None = None) -> DataLoader[Any]:
        """This process's share in the process group at hand, by the library's usual call."""

    @abstractmethod
    def share(self, loader: DataLoader[Any], *, world: int, rank: int) -> DataLoader[Any]:
        """One rank's share without a process group."""

    @abstractmethod
    def resumed(self, make: Callable[[], DataLoader[Any]], *, consumed: int) -> Callable[[], DataLoader[Any]]:
        """What returns a newly prepared loader that starts after `consumed` samples."""
