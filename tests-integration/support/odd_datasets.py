"""Datasets that answer odd things to questions, or refuse to be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, random_split


class Holds(Dataset[Any]):
    """Eight samples that must not be read, and whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise RuntimeError("a sample was read")


class Stream(IterableDataset[Any]):
    """A stream that must not be read, and whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("the stream was read")


class Odd(Dataset[Any]):
    """A dataset whose every question fails, and that holds itself."""

    def __init__(self, error: Exception) -> None:
        self.dataset = self
        self.error = error
        self.datasets = [self, {"again": self}]

    def __len__(self) -> int:
        raise self.error

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    @property
    def indices(self) -> Any:
        raise ZeroDivisionError

    def __bool__(self) -> bool:
        raise ZeroDivisionError

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment] # as Python does for classes with __eq__


class Slotted:
    __slots__ = ("indices",)

    def __len__(self) -> int:
        return 2


def data() -> TensorDataset:
    return TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))


def seeded(rank: int) -> Dataset[Any]:
    torch.manual_seed(rank)
    return random_split(data(), [12, 8], generator=torch.Generator().manual_seed(0))[0]
