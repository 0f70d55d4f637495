"""A7: an order that does not follow from what a state records is an error, and never a silent repetition."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from accel_data import ResumeError, prepare_data_loader
from accel_testing import RangeDataset
from torch.utils.data import DataLoader, Sampler

N = 40


class ItemByItem(Sampler[Any]):
    """Draws each index, or each batch of `size`, when it is asked for; the script draws in between."""

    def __init__(self, draw: Callable[[int], int], size: int | None = None) -> None:
        self.draw, self.size = draw, size

    def __len__(self) -> int:
        return N // (self.size or 1)

    def __iter__(self) -> Iterator[Any]:
        left = list(range(N))
        while left:
            one = left.pop(self.draw(len(left)))
            yield one if self.size is None else [one, *(left.pop() for _ in range(min(self.size - 1, len(left))))]


DRAWS: dict[str, Callable[[int], int]] = {
    "python": random.randrange,
    "numpy": lambda n: int(numpy.random.randint(n)),
    "torch": lambda n: int(torch.randint(n, ())),
    "a generator of its own": random.Random(8).randrange,
}


def script_draws() -> None:
    random.random()
    numpy.random.random()
    torch.rand(())


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("kind", DRAWS)
def test_an_order_that_is_drawn_item_by_item_is_refused_or_repeated(kind: str, batches: bool) -> None:
    """Of each place in the epoch: what is served before and after it is everything, or there is an error."""

    def loader() -> Any:
        if batches:
            return prepare_data_loader(DataLoader(RangeDataset(N), batch_sampler=ItemByItem(DRAWS[kind], 3)))
        return prepare_data_loader(DataLoader(RangeDataset(N), 3, sampler=ItemByItem(DRAWS[kind])))

    refused = 0
    for place in range(1, 12):
        broken, served = loader(), []
        for batch in islice(broken, place):
            served += batch.tolist()
            state = broken.state_dict()
            script_draws()
        again = loader()
        again.load_state_dict(state)
        script_draws()
        try:
            served += [number for batch in again for number in batch.tolist()]
        except ResumeError as error:
            assert "does not repeat its order" in str(error)  # noqa: PT017
            refused += 1
        else:
            assert sorted(served) == list(range(N)), f"after {place} batches"
    assert refused > 5
