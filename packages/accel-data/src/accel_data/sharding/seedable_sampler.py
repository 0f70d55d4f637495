"""A random sampler whose order follows from a seed and the epoch, without a generator to keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import RandomSampler


class SeedableRandomSampler(RandomSampler):
    """A RandomSampler whose order is a function of a seed and the epoch alone.

    Each pass is the next epoch.

    Args:
        *args: Arguments of RandomSampler.
        data_seed: The seed; the initial seed of torch if it is left out.
        **kwargs: Keyword arguments of RandomSampler.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self._epoch = self.next_epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.begin_epoch()
        yield from super().__iter__()

    def begin_epoch(self) -> None:
        """Set the generator of the current epoch, and count the next one."""
        self._epoch = self.next_epoch
        self.generator = torch.Generator()
        self.generator.manual_seed((self.initial_seed + self._epoch) % 2**63)
        self.next_epoch += 1  # if nobody calls `set_epoch`, as prepared loaders do

    def state_dict(self) -> dict[str, int]:
        """Return the seed, as the state of the loader has the epoch."""
        return {"seed": self.initial_seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the seed to that of a state."""
        self.initial_seed = state["seed"]

    @property
    def epoch(self) -> int:
        """The epoch of the newest pass, or of the next after it was set."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = self.next_epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.epoch = epoch
