"""A stream that shuffles by an epoch of its own goes on from every moment of a job, also between two epochs."""

import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.loaders import device_prefetch
from accel_state import AccumulationState
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

N = 20
EPOCHS = 3


class Reshuffled(IterableDataset[Tensor]):
    """Numbers in an order that follows from how many passes have ended; it says where it stands."""

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.passes = 0
        self.at = 0

    def __iter__(self) -> Iterator[Tensor]:
        order = random.Random(self.passes).sample(range(self.n), self.n)
        while self.at < self.n:
            self.at += 1
            yield torch.tensor(order[self.at - 1])
        self.passes, self.at = self.passes + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.at = state["passes"], state["at"]


class AtItsStart(Reshuffled):
    """Counts a pass when it begins, not when it ends."""

    def __iter__(self) -> Iterator[Tensor]:
        if not self.at:
            self.passes += 1
        order = random.Random(self.passes).sample(range(self.n), self.n)
        while self.at < self.n:
            self.at += 1
            yield torch.tensor(order[self.at - 1])
        self.at = 0


class OneState(Reshuffled):
    """Tells the very object that it goes on with."""

    def __init__(self, n: int = N) -> None:
        super().__init__(n)
        self.place = {"passes": 0, "at": 0}

    def __iter__(self) -> Iterator[Tensor]:
        order = random.Random(self.place["passes"]).sample(range(self.n), self.n)
        while self.place["at"] < self.n:
            self.place["at"] += 1
            yield torch.tensor(order[self.place["at"] - 1])
        self.place["passes"], self.place["at"] = self.place["passes"] + 1, 0

    def state_dict(self) -> dict[str, int]:
        return self.place

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = copy.copy(state)


class InShards(Reshuffled):
    """Has shards, each of which shuffles by its own passes."""

    def shard(self, num_shards: int, index: int) -> "Part":
        return Part(range(index, self.n, num_shards))


class Part(Reshuffled):
    """Some of the numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(len(numbers))
        self.numbers = numbers

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(self.numbers[int(one)]) for one in super().__iter__())


class Unequal(Reshuffled):
    """Gives the first loader worker three of the numbers, and the second one the others."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        assert worker is not None
        self.n, first = (3, 0) if worker.id == 0 else (N - 3, 3)
        return (one + first for one in super().__iter__())


KINDS = {"at its end": Reshuffled, "at its start": AtItsStart, "with one state": OneState}
#: a moment of a job: the epoch, and after how many batches; None is the pause after the loop
Moment = tuple[int, int | None]


def moments(batches: int) -> list[Moment]:
    """All of them: before each batch but the first of all, and after the loop of each epoch."""
    inside = [(epoch, batch) for epoch in range(EPOCHS) for batch in range(1, batches + 1)]
    return [*inside, *((epoch, None) for epoch in range(EPOCHS))]


class Life:
    """A part of a job: what its optimizer steps saw, and the state at the moment in which it was stopped."""

    def __init__(self, loader: Any, every: int, stop: Moment | None, state: Any = None) -> None:
        self.loader, self.every, self.stop = loader, every, stop
        self.steps: list[list[int]] = []
        self.open: list[int] = []
        self.state: Any = None
        if state is not None:
            loader.load_state_dict(state)

    def run(self) -> "Life":
        while self.loader.iteration < EPOCHS:
            epoch = self.loader.iteration
            for number, batch in enumerate(self.loader, start=1):
                due = self.loader.accumulation.tick()
                self.open += batch.tolist()
                if due:
                    self.steps.append(self.open)
                    self.open = []
                if self.stop == (epoch, number):
                    return self.stopped()
            if self.stop == (epoch, None):
                return self.stopped()
        return self

    def stopped(self) -> "Life":
        self.state = self.loader.state_dict()
        return self


def alone(kind: str, every: int) -> Any:
    """A fresh job of one process."""
    return prepare_data_loader(DataLoader(KINDS[kind](), 2), accumulation=AccumulationState(every))


@pytest.mark.grid(1)
@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_every_moment_of_a_job_can_be_gone_on_from(kind: str, every: int) -> None:
    """33 moments: each batch of three epochs, inside accumulation as well, and the pauses after them."""
    whole = Life(alone(kind, every), every, None).run().steps
    assert sorted(chain.from_iterable(whole)) == sorted([*range(N)] * EPOCHS)
    wrong = []
    for stop in moments(N // 2):
        first = Life(alone(kind, every), every, stop).run()
        then = Life(alone(kind, every), every, None, first.state).run()
        if first.steps + then.steps != whole:
            wrong.append(stop)
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_was_loaded_is_told_again(kind: str) -> None:
    """A job that is stopped twice, the second time before it was served anything."""
    whole = Life(alone(kind, 1), 1, None).run().steps
    for stop in moments(N // 2):
        first = Life(alone(kind, 1), 1, stop).run()
        second = alone(kind, 1)
        second.load_state_dict(first.state)
        then = Life(alone(kind, 1), 1, None, second.state_dict()).run()
        assert first.steps + then.steps == whole, stop


@pytest.mark.parametrize("resumed", [False, True], ids=["begun here", "resumed"])
@pytest.mark.parametrize("passes", [0, 1])
@pytest.mark.parametrize("kind", [*KINDS, "in shards"])
def test_a_loop_that_was_left_begins_its_order_again(kind: str, passes: int, resumed: bool) -> None:
    """A job that goes on without a stop is served what one is that is stopped after the loop."""

    def fresh() -> Any:
        return prepare_data_loader(DataLoader((KINDS | {"in shards": InShards})[kind](), 2))

    loader, seen = fresh(), list[int]()
    for _ in range(passes):
        list(loader)
    for batch in loader:
        seen += batch.tolist()
        if len(seen) == 6:
            state = loader.state_dict()
            break
    if resumed:  # in the middle, and left there again
        loader = fresh()
        loader.load_state_dict(state)
        for _ in loader:
            break
    again = fresh()
    again.load_state_dict(loader.state_dict())
    live, stopped = ([[batch.tolist() for batch in one] for _ in range(2)] for one in (loader, again))
    assert [sorted(chain.from_iterable(one)) for one in live] == [[*range(N)]] * 2
    assert live == stopped
    assert list(chain.from_iterable(live[0]))[:6] == seen


@pytest.mark.parametrize("kind", [*KINDS, "in shards"])
def test_a_loop_that_was_left_twice_begins_at_its_front(kind: str) -> None:
    """The front of a pass that begins at a front that was told is that front, and no place after it."""
    loader: Any = prepare_data_loader(DataLoader((KINDS | {"in shards": InShards})[kind](), 2))
    for _ in range(2):
        for _ in loader:
            break
    assert sorted(chain.from_iterable(batch.tolist() for batch in loader)) == [*range(N)]


@pytest.mark.parametrize("kind", [*KINDS, "in shards"])
def test_a_loop_that_was_left_after_a_pause_begins_at_its_front(kind: str) -> None:
    """The job was stopped between two epochs."""
    loader: Any
    again: Any
    loader, again = (prepare_data_loader(DataLoader((KINDS | {"in shards": InShards})[kind](), 2)) for _ in range(2))
    list(loader)
    again.load_state_dict(loader.state_dict())
    for _ in again:
        break
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_that_is_open_at_the_end_keeps_the_front_of_its_pass(kind: str) -> None:
    """The samples of the window are served again in the pass in which they were."""
    loader: Any
    again: Any
    loader, again = (
        prepare_data_loader(DataLoader(KINDS[kind](), 2), accumulation=AccumulationState(4, at_epoch_end="carry"))
        for _ in range(2)
    )
    seen = list[list[int]]()
    for batch in loader:
        seen.append(batch.tolist())
        loader.accumulation.tick()
    again.load_state_dict(loader.state_dict())
    for batch in again:
        assert batch.tolist() == seen[8]
        break
    assert [batch.tolist() for batch in again] == seen


def test_a_loader_worker_that_has_ended_keeps_its_epoch() -> None:
    """The first of two workers that live on has ended where the job is stopped, and both go on in order."""

    def fresh() -> Any:
        return prepare_data_loader(
            DataLoader(Unequal(), 2, num_workers=2, persistent_workers=True), accumulation=AccumulationState()
        )

    whole = Life(fresh(), 1, None).run().steps
    for stop in [(0, 8), (1, 8)]:
        first = Life(fresh(), 1, stop).run()
        then = Life(fresh(), 1, None, first.state).run()
        assert first.steps + then.steps == whole, stop


def of_rank(kind: str, dispatch: bool, stop: Moment | None, state: Any) -> tuple[list[list[int]], Any]:
    """The steps of one rank of a job of several, and the state at its end."""
    warnings.simplefilter("error")
    transport = TorchDist()
    loader = prepare_data_loader(
        DataLoader(KINDS[kind](), 2), transport=transport, dispatch_batches=dispatch, accumulation=AccumulationState(2)
    )
    life = Life(loader, 2, stop, state).run()
    return [sorted(chain(*transport.all_gather_objects(step))) for step in life.steps], life.state


@pytest.mark.grid(1)
@pytest.mark.parametrize("dispatch", [False, True], ids=["every rank reads", "rank 0 reads"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_go_on_from_a_pause_and_a_window(world: MakePool, kind: str, dispatch: bool) -> None:
    """After the loop of an epoch, before the first step of the next, inside it, and at its last batch."""
    pair = world(2)
    (whole, _), *_ = pair.run(of_rank, kind, dispatch, None, None)
    assert sorted(chain.from_iterable(whole)) == sorted([*range(N)] * EPOCHS)
    for stop in [(1, None), (2, 1), (1, 3), (0, 5)]:
        (done, state), *_ = pair.run(of_rank, kind, dispatch, stop, None)
        (more, _), *_ = pair.run(of_rank, kind, dispatch, None, state)
        assert done + more == whole, stop


#: stands in for a stream for copies where there is no accelerator
SIDE: Any = SimpleNamespace(send=lambda batch: (batch, None), await_copy=lambda copied: None)


def test_a_last_batch_that_is_copied_ahead_is_not_yet_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is left before its last batch begins again, whether or not that batch was on its way."""
    monkeypatch.setattr(
        "accel_data.loaders.loader.on_device",
        lambda batches, epoch, device, non_blocking: device_prefetch._one_ahead(batches, epoch, SIDE),
    )
    loader: Any = prepare_data_loader(DataLoader(Reshuffled(), 2))
    seen = list[list[int]]()
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == N // 2 - 1:
            break
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    assert first[:-1] == seen
    assert first != second
