"""A7: an order that does not follow from what a state records is an error, and never a silent repetition."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from accel_data import ResumeError, prepare_data_loader
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader, Dataset, Sampler

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


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "tensor": torch.tensor,
    "array": numpy.array,
    "range": lambda batch: range(batch[0], batch[-1] + 1),
    "one-shot iterator": iter,
    "pairs": lambda batch: [(0, one) for one in batch],
    "words": lambda batch: [str(one) for one in batch],
}


class Pages(Sampler[Any]):
    """Batches of neighbours, of any kind that torch takes."""

    def __init__(self, kind: str, lengths: tuple[int, ...] = (4,) * 10) -> None:
        self.kind, self.lengths = kind, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Any]:
        at = 0
        for length in self.lengths:
            yield KINDS[self.kind](list(range(at, at + length)))
            at += length


class AnyIndex(Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: Any) -> int:
        return int(index[1] if isinstance(index, tuple) else index)


@pytest.mark.filterwarnings("ignore:continuing, although an optimizer step took")
def test_batches_of_every_kind_are_served_and_resumed_at_every_world_size() -> None:
    """An iterator can be looked at once only, and that is the dataset's right."""
    for kind in KINDS:

        def shard(rank: int, world: int, kind: str = kind) -> Any:
            plain = DataLoader(AnyIndex(), batch_sampler=Pages(kind))
            return prepare_data_loader(plain, num_processes=world, process_index=rank)

        states = [shard(0, 1).state_dict()]
        for world in (1, 2, 1, 2, 1):
            before, states = states, []
            for rank in range(world):
                one = shard(rank, world)
                one.load_state_dict(before[0])
                for batch in islice(one, 1):
                    assert batch.tolist()[0] % 4 == 0
                    states.append(one.state_dict())
            assert all(str(state) == str(states[0]) for state in states)
        last = shard(0, 1)
        last.load_state_dict(states[0])
        assert [number for batch in last for number in batch.tolist()] == list(range(4 * 7, N))


class Pairs(Sampler[Any]):
    """Indices (0, n), of which only the second is drawn, one by one."""

    def __iter__(self) -> Iterator[Any]:
        left = list(range(N))
        while left:
            yield 0, left.pop(random.randrange(len(left)))


def test_pairs_are_compared_whole() -> None:
    def loader() -> Any:
        return prepare_data_loader(DataLoader(AnyIndex(), 4, sampler=Pairs()))

    one = loader()
    for _ in islice(one, 5):
        state = one.state_dict()
        script_draws()
    again = loader()
    again.load_state_dict(state)
    with pytest.raises(ResumeError, match="does not repeat its order"):
        list(again)
