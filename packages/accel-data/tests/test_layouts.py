"""A4: `prepare_data_loader` against a few lines written from the reference's prose, for every rank of every world."""

from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

import pytest
import torch
from accel_data import prepare_data_loader
from accel_state import AccumulationState
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from numbers_to_load import Numbers
from suite.soak import Cases
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


class NumberStream(IterableDataset[Tensor]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(number) for number in range(self.n))


class Backwards(Sampler[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return reversed(range(self.n))

    def __len__(self) -> int:
        return self.n


class Own(Sampler[list[int]]):
    """A batch sampler that is not torch's: sizes 1, 2, 3, 1, 2, 3 ... and no batch size."""

    def __init__(self, n: int, drop_last: bool) -> None:
        source = iter(range(n))
        self.batches = [batch for size in islice(cycle([1, 2, 3]), n) if (batch := list(islice(source, size)))]
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class OwnSized(Own):
    """A batch sampler that is not torch's, with a batch size."""

    def __init__(self, n: int, batch_size: int, drop_last: bool) -> None:
        super().__init__(n, drop_last)
        self.batch_size = batch_size
        self.batches = list(BatchSampler(Backwards(n), batch_size, drop_last))


VARYING = ("own batch sampler", "stream of batches")
KINDS = (
    *("sequential", "random", "subset", "weighted", "own sampler", "own batch sampler", "own sized batch sampler"),
    *("batch sampler as sampler", "stream", "stream of batches"),
)


def make(kind: str, n: int, size: int, drop_last: bool) -> DataLoader[Tensor]:
    """The user's loader; every call makes an equal one."""
    order, data = torch.Generator().manual_seed(7), Numbers(n)
    samplers: dict[str, Sampler[int]] = {
        "sequential": SequentialSampler(data),
        "subset": SubsetRandomSampler(range(0, n, 2), generator=order),
        "own sampler": Backwards(n),
    }
    if kind == "random":
        return DataLoader(data, size, shuffle=n > 0, drop_last=drop_last, generator=order)
    if kind == "weighted":
        drawn = WeightedRandomSampler([1.0] * max(n, 1), max(n, 1), generator=order)
        return DataLoader(data, size, sampler=drawn, drop_last=drop_last)
    if kind == "own batch sampler":
        return DataLoader(data, batch_sampler=Own(n, drop_last))
    if kind == "own sized batch sampler":
        return DataLoader(data, batch_sampler=OwnSized(n, size, drop_last))
    if kind == "batch sampler as sampler":
        batches: Any = BatchSampler(SequentialSampler(data), size, drop_last)
        return DataLoader(data, sampler=batches, batch_size=None)
    if kind == "stream":
        return DataLoader(NumberStream(n), size, drop_last=drop_last)
    if kind == "stream of batches":
        return DataLoader(NumberStream(n), batch_size=None)
    return DataLoader(data, size, sampler=samplers[kind], drop_last=drop_last)


def repeated(items: list[Any], start: list[Any], length: int) -> list[Any]:
    """`items`, continued by going round and round `start`."""
    return list(islice(chain(items, cycle(start)), length))


def by_samples(
    batches: list[list[int]], size: int, world: int, *, split: bool, even: bool, drop_last: bool
) -> list[list[list[int]]]:
    """What each rank gets: world batches make a round, or one batch when it is split; a rank has its slice of it.

    The last round, when it is not full, is dropped, filled up from the start of the epoch, or left as it is.
    """
    together = 1 if split else world
    rows = size // world if split else size
    rounds = [list(chain(*batches[first : first + together])) for first in range(0, len(batches), together)]
    if rounds and len(rounds[-1]) < rows * world:
        if drop_last:
            rounds.pop()
        elif even:
            rounds[-1] = repeated(rounds[-1], rounds[0], rows * world)
    slices = [[one[rank * rows : (rank + 1) * rows] for one in rounds] for rank in range(world)]
    return [[part for part in parts if part] for parts in slices]


def by_batches(batches: list[Any], world: int, *, even: bool, drop_last: bool) -> list[list[Any]]:
    """What each rank gets of batches that vary: every `world`-th one; whole ones are dropped or repeated at the end."""
    missing = -len(batches) % world
    if missing and drop_last:
        batches = batches[: missing - world]
    elif missing and even:
        batches = repeated(batches, batches[:world], len(batches) + missing)
    return [batches[rank::world] for rank in range(world)]


def joined(layouts: list[list[Any]], real: int | None) -> list[int]:
    """What `gather` sees of a whole epoch, the last batch cut to its real samples."""
    steps = [[sample for part in step for sample in (part if isinstance(part, list) else [part])]
             for step in zip(*layouts, strict=True)]  # fmt: skip
    if steps and real:
        steps[-1] = steps[-1][:real]
    return list(chain(*steps))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_gets_what_the_prose_says(kind: str, cases: Cases) -> None:
    """A4: the layouts of any sampler or stream, on any rank of any world. S45, S47, S48, S49, S50, S54, S56, S58."""
    numbers = cases(60, 2000)

    @seed(numbers.start)
    @settings(max_examples=len(numbers), deadline=None, database=None)
    @given(
        n=st.integers(0, 60),
        multiple=st.integers(1, 5),
        world=st.integers(1, 8),
        split=st.booleans(),
        even=st.booleans(),
        drop_last=st.booleans(),
    )
    def tried(**job: Any) -> None:
        assert_layout(kind, **job)

    tried()


def assert_layout(kind: str, n: int, multiple: int, world: int, split: bool, even: bool, drop_last: bool) -> None:
    split = split and kind not in VARYING
    drop_last = drop_last and kind != "stream of batches"
    size = multiple * world if split else multiple
    plain: list[Any] = [batch.tolist() for batch in make(kind, n, size, drop_last)]
    if world == 1:
        expected = [plain]
    elif kind in VARYING:
        expected = by_batches(plain, world, even=even, drop_last=drop_last)
    else:
        expected = by_samples(plain, size, world, split=split, even=even, drop_last=drop_last)

    found: list[list[Any]] = []
    real: int | None = None
    for rank in range(world):
        accumulation = AccumulationState()
        loader = prepare_data_loader(
            make(kind, n, size, drop_last),
            num_processes=world,
            process_index=rank,
            split_batches=split,
            even_batches=even,
            accumulation=accumulation,
        )
        seen = [(batch.tolist(), accumulation.end_of_dataloader, accumulation.remainder) for batch in loader]
        found.append([batch for batch, _, _ in seen])
        assert [last for _, last, _ in seen] == [False] * (len(seen) - 1) + [True] * bool(seen)
        assert [left for _, _, left in seen[:-1]] == [0] * (len(seen) - 1)
        real = seen[-1][2] if seen else None
        # a batch sampler of the user's own does not say how short its last batch is
        unknowable = kind == "own sized batch sampler" and split and not even and not drop_last and world > 1
        assert len(loader) == (len(plain) if unknowable else len(seen))
    assert found == expected
    if even and not drop_last:
        assert joined(found, real) == joined([plain], None)
