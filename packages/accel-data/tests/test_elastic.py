"""T5, T24: another number of processes goes on with the same samples in each optimizer step."""

import random
from itertools import chain
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_state import AccumulationState
from accel_testing import MakePool
from numbers_to_load import NumberStream, ShardableStream
from suite.soak import Cases
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader

State = dict[str, Any]
Steps = list[list[int]]  # the ids of each step of the job, sorted


def make(kind: str, n: int, size: int, workers: int = 0) -> DataLoader[Any]:
    if kind == "shuffled":
        own = torch.Generator().manual_seed(3)
        return DataLoader(RangeDataset(n), size, shuffle=True, generator=own, num_workers=workers)
    if kind == "default":
        return DataLoader(RangeDataset(n), size, shuffle=True, num_workers=workers)
    dataset: Any = NumberStream(range(n)) if kind == "stream" else ShardableStream(range(n))
    return DataLoader(dataset, size, num_workers=workers)


def simulated(
    kind: str, n: int, together: int, world: int, state: State | None, steps: int | None, workers: int = 0
) -> tuple[Any, ...]:
    """The steps of a whole world without processes, and the state after so many of them."""
    served, after = [], state
    for rank in range(world):
        loader: Any = prepare_data_loader(
            make(kind, n, together // world, workers), num_processes=world, process_index=rank, dispatch_batches=False
        )
        if state is not None:
            loader.load_state_dict(state)
        mine = []
        for step, batch in enumerate(loader, start=1):
            mine.append(batch.tolist())
            if step == steps:
                break_state = loader.state_dict()
                after = break_state if rank == 0 or kind != "sharded" else joined(after, break_state)
                break
        served.append(mine)
    return [sorted(chain.from_iterable(parts)) for parts in zip(*served, strict=True)], after


def joined(one: State | None, other: State) -> State:
    """What ranks without a transport know of their shards, put together as the transport would."""
    assert one is not None
    taken = {shard: max(one["taken"].get(shard, 0), count) for shard, count in other["taken"].items()}
    return {**other, "taken": one["taken"] | taken}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["shuffled", "stream", "sharded"])
@pytest.mark.filterwarnings("ignore:.* samples are read again")
def test_worlds_that_change_serve_the_steps_of_the_unbroken_run(kind: str, cases: Cases) -> None:
    """Random histories of crashes and resizes; the batch of the job stays the same."""
    for seed in cases(12, 2000):
        draws = random.Random(seed)
        together = 8 * draws.randint(1, 3)
        n = together * draws.randint(1, 12) + (0 if kind == "sharded" else draws.randint(0, together - 1))
        expected, _ = simulated(kind, n, together, 1, None, None)
        expected = [step for step in expected if len(step) == together]
        state, done = None, 0
        while done < len(expected):
            some = draws.randint(1, len(expected) - done)
            steps, state = simulated(kind, n, together, draws.choice([1, 2, 4, 8]), state, some)
            assert steps == expected[done : done + some], (seed, kind, n, together)
            done += some


def test_loader_workers_read_the_shards_of_a_step_on_any_world() -> None:
    alone, _ = simulated("sharded", 64, 8, 1, None, None, workers=2)
    assert len(alone) == 8
    assert simulated("sharded", 64, 8, 2, None, None, workers=2)[0] == alone


def rank_of(
    kind: str, n: int, size: int, workers: int, state: State | None, steps: int, seed: int
) -> tuple[Any, State]:
    """What one rank of a real world is served: a number of steps, or the rest and another epoch."""
    transport = TorchDist()
    torch.manual_seed(seed + 17 * transport.rank)
    loader: Any = prepare_data_loader(make(kind, n, size, workers), transport=transport)
    if state is not None:
        loader.load_state_dict(state)
    if not steps:
        return [[batch.tolist() for batch in loader] for _ in range(2)], loader.state_dict()
    mine = []
    for step, batch in enumerate(loader, start=1):
        mine.append(batch.tolist())
        if step == steps:
            return mine, loader.state_dict()
    raise AssertionError("too few steps")


def together_of(parts: list[list[list[int]]]) -> Steps:
    return [sorted(chain.from_iterable(step)) for step in zip(*parts, strict=True)]


@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "default", "sharded", "stream"])
@pytest.mark.filterwarnings("ignore:.* samples are read again")
def test_real_worlds_of_two_then_one_then_four_then_two(world: MakePool, kind: str, workers: int) -> None:
    """Ids of each step, in the broken epoch and in the one after it; ranks have seeds of their own."""
    n, together = 96, 8
    pools = {size: world(size) for size in (1, 2, 4)}
    unbroken = pools[2].run(rank_of, kind, n, together // 2, workers, None, 0, 5)
    expected = together_of([epochs[0] for epochs, _ in unbroken])
    following = together_of([epochs[1] for epochs, _ in unbroken])
    assert sorted(chain.from_iterable(expected)) == list(range(n))
    done, state = 0, None
    for size, steps in ((2, 3), (1, 2), (4, 1), (2, 2)):
        seed = 5 if state is None else 99
        results = pools[size].run(rank_of, kind, n, together // size, workers, state, steps, seed)
        assert together_of([mine for mine, _ in results]) == expected[done : done + steps], size
        state, done = results[0][1], done + steps
    rest = pools[2].run(rank_of, kind, n, together // 2, workers, state, 0, 1234)
    assert together_of([epochs[0] for epochs, _ in rest]) == expected[done:]
    assert together_of([epochs[1] for epochs, _ in rest]) == following


def dispatched(state: State | None, size: int, steps: int) -> tuple[list[list[int]], State]:
    transport = TorchDist()
    loader: Any = prepare_data_loader(make("shuffled", 40, size), transport=transport, dispatch_batches=True)
    if state is not None:
        loader.load_state_dict(state)
    mine = []
    for step, batch in enumerate(loader, start=1):
        mine.append(batch.tolist())
        if step == steps:
            return mine, loader.state_dict()
    return mine, loader.state_dict()


def test_a_dispatched_loader_goes_on_too(world: MakePool) -> None:
    """2 -> 1 -> 2; the state is the same on all ranks."""
    whole = together_of([mine for mine, _ in world(2).run(dispatched, None, 4, 99)])
    (first, state), (second, same) = world(2).run(dispatched, None, 4, 2)
    assert str(state) == str(same)
    ((alone, state),) = world(1).run(dispatched, state, 8, 1)
    rest = [mine for mine, _ in world(2).run(dispatched, state, 4, 99)]
    assert together_of([first, second]) + together_of([alone]) + together_of(rest) == whole


@pytest.mark.parametrize("stop", range(1, 11))
def test_a_state_taken_inside_a_window_goes_back_to_the_newest_step(stop: int) -> None:
    """Fault test 23, T24: what was accumulated is lost with the process, so its samples are served again."""

    def window(state: State | None, upto: int | None) -> tuple[list[list[int]], State]:
        """The batches of each optimizer step; the window in hand is lost at the end."""
        accumulation = AccumulationState(4)
        loader: Any = prepare_data_loader(make("shuffled", 20, 2), accumulation=accumulation)
        if state is not None:
            loader.load_state_dict(state)
        steps, taken = [], []
        for number, batch in enumerate(loader, start=1):
            taken += batch.tolist()
            if accumulation.tick():
                steps.append(taken)
                taken = []
            if number == upto:
                return steps, loader.state_dict()
        return steps, loader.state_dict()

    unbroken, _ = window(None, None)
    assert list(map(len, unbroken)) == [8, 8, 4]
    before, state = window(None, stop)
    after, _ = ([], None) if state["ended"] else window(state, None)
    assert before + after == unbroken


def test_a_window_that_is_carried_over_the_end_keeps_its_samples() -> None:
    accumulation = AccumulationState(4, at_epoch_end="carry")
    loader: Any = prepare_data_loader(make("shuffled", 12, 2), accumulation=accumulation)
    ids: list[int] = []
    for batch in loader:
        ids += batch.tolist()
        accumulation.tick()
    state = loader.state_dict()  # 4 of 6 batches are in a step, 2 wait for the next epoch
    assert (state["epoch"], state["consumed"]) == (0, 8)
    again: Any = prepare_data_loader(make("shuffled", 12, 2), accumulation=AccumulationState(4, at_epoch_end="carry"))
    again.load_state_dict(state)
    assert list(chain.from_iterable(batch.tolist() for batch in again)) == ids[8:]


def test_a_dataset_of_ten_million_is_entered_without_a_read() -> None:
    """T21: no `__getitem__` for what was served."""

    class Counting(torch.utils.data.Dataset[int]):
        reads = 0

        def __len__(self) -> int:
            return 10_000_010

        def __getitem__(self, index: int) -> int:
            Counting.reads += 1
            return index

    for shuffle in (False, True):
        Counting.reads = 0
        own = torch.Generator().manual_seed(0)
        loader: Any = prepare_data_loader(DataLoader(Counting(), 5, shuffle=shuffle, generator=own))
        iterator = iter(loader)
        next(iterator)
        state = {**loader.state_dict(), "consumed": 10_000_000, "digest": None}
        iterator.close()
        again: Any = prepare_data_loader(DataLoader(Counting(), 5, shuffle=shuffle, generator=own))
        again.load_state_dict(state)
        rest = [batch.tolist() for batch in again]
        assert list(map(len, rest)) == [5, 5]
        assert Counting.reads == 15
        if not shuffle:
            assert rest[0] == list(range(10_000_000, 10_000_005))
