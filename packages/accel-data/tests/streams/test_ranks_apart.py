"""Ranks that read shards run out apart, and fail apart: what others are served and told then."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_state import AccumulationState, RunRequest, acquire, release
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


class UnequalRows(IterableDataset[dict[str, Tensor]]):
    """Two shards, of eight rows and of two."""

    num_shards = 2

    def __init__(self, rows: int = 10) -> None:
        self.rows = rows

    def shard(self, num_shards: int, index: int) -> "UnequalRows":
        return UnequalRows(2 if index else 8)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return ({"x": torch.tensor(row), "label": torch.tensor(-row)} for row in range(self.rows))


def changed_by_the_loop() -> list[tuple[list[int], list[int]]]:
    seen = []
    for batch in prepare_data_loader(DataLoader(UnequalRows(), 2), transport=TorchDist()):
        label = batch.pop("label")
        seen.append((batch["x"].tolist(), label.tolist()))
        batch["x"] += 100
    return seen


def test_what_is_served_again_is_as_it_was_before_the_loop_changed_it(world: MakePool) -> None:
    long, short = world(2).run(changed_by_the_loop)
    assert long == [([row, row + 1], [-row, -row - 1]) for row in (0, 2, 4, 6)]
    assert short == [([0, 1], [0, -1])] * 4


class Refusing(UnequalRows):
    """Its shards can be put nowhere on rank 1."""

    def shard(self, num_shards: int, index: int) -> "Refusing":
        return Refusing(8)

    def state_dict(self) -> dict[str, int]:
        return {"at": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if torch.distributed.get_rank() == 1:
            raise KeyError("at")


def resumed_in_vain() -> str:
    def fresh() -> Any:
        return prepare_data_loader(DataLoader(Refusing(), 2), transport=TorchDist())

    loader, again = fresh(), fresh()
    for _ in loader:
        again.load_state_dict(loader.state_dict())
        break
    with pytest.raises((KeyError, ValueError)) as error:
        list(again)
    return str(error.value)


def test_what_fails_on_one_rank_at_a_resume_is_told_to_all(world: MakePool) -> None:
    zero, one = world(2).run(resumed_in_vain)
    assert one == "'at'"
    assert zero == "rank 1 cannot continue: 'at'"


class Lengths(IterableDataset[Tensor]):
    """Shards of given lengths; sample i of shard s is 100 * s + i."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.num_shards, self.index = lengths, len(lengths), 0

    def shard(self, num_shards: int, index: int) -> "Lengths":
        part = Lengths(self.lengths)
        part.index = index
        return part

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(100 * self.index + number) for number in range(self.lengths[self.index]))


LENGTHS = [[12, 11], [4, 12], [0, 9], [1, 0], [0, 0], [9, 2, 8, 8, 1, 0, 4, 4]]


def passes(ending: str, workers: int) -> tuple[list[Any], list[Any]]:
    """All passes, by messages and by shared memory: each batch, whether it is the last, and what is real in it."""
    run = acquire(RunRequest(cpu=True))
    results = []
    for transport in (TorchDist(), run.transport):
        told: list[Any] = []
        for lengths in LENGTHS:
            window = AccumulationState()
            plain = DataLoader(Lengths(lengths), 4, num_workers=workers if lengths == LENGTHS[-1] else 0)
            loader: Any = prepare_data_loader(plain, ending=ending, transport=transport, accumulation=window)
            for stop in (None, 2, 2, None):  # left in the middle too
                told.append((lengths, stop))
                for number, batch in enumerate(loader, start=1):
                    active = window.active
                    assert active is not None
                    told.append((batch.tolist(), active.last, active.tail, loader.state_dict()["taken"]))
                    if number == stop:
                        break
        results.append(told)
    release()
    return results[0], results[1]


@pytest.mark.parametrize("ending", ["pad", "exact", "drop"])
def test_ranks_are_served_alike_by_votes_in_messages_or_shared_memory(world: MakePool, ending: str) -> None:
    for by_messages, in_shared_memory in world(2).run(passes, ending, 2, timeout_s=60):
        assert len(by_messages) > 4 * len(LENGTHS)
        assert in_shared_memory == by_messages


class Fed(Lengths):
    """A stream that the loop feeds: it has the next sample once the loop has asked for it."""

    fed = 0

    def shard(self, num_shards: int, index: int) -> "Fed":
        self.index = index
        return self

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(self.lengths[self.index]):
            if number >= self.fed:
                raise RuntimeError(f"sample {number} is read before it is there")
            yield torch.tensor(number)


def fed(by: str) -> int:
    stream = Fed([40, 40])
    transport = acquire(RunRequest(cpu=True)).transport if by == "shared memory" else TorchDist()
    loader: Any = prepare_data_loader(DataLoader(stream, 4), transport=transport)
    stream.fed = 8
    batches = 0
    for _ in loader:
        stream.fed += 4
        batches += 1
    release()
    return batches


@pytest.mark.parametrize("by", ["shared memory", "messages"])
def test_no_more_than_one_batch_is_read_ahead(world: MakePool, by: str) -> None:
    assert world(2).run(fed, by, timeout_s=60) == [10, 10]
