"""T5, fault tests 19 to 21: histories of crashes and resizes, of everything that an order can come from."""

import random
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from accel_comm import Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_data import DataLoaderDispatcher, SeedableRandomSampler, prepare_data_loader
from accel_state import AccumulationState
from accel_testing import MakePool
from suite.soak import Cases
from suite.toy_models import RangeDataset, RangeStream
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

N = 120
EPOCHS = 3
#: samples of an optimizer step of the whole job
TOGETHER = 12


class ByPasses(Sampler[int]):
    """Hidden randomness: its order follows from how often it was asked, which it can say and be told."""

    def __init__(self, n: int) -> None:
        self.n, self.passes = n, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(random.Random(self.passes).sample(range(self.n), self.n))

    def __len__(self) -> int:
        return self.n

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = state["passes"]


class Buckets(Sampler[list[int]]):
    """Batches of 1 to 5 samples, in an order of its own."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.generator = torch.Generator().manual_seed(n)

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(torch.randperm(self.n, generator=self.generator).tolist())
        sizes = torch.randint(1, 6, (self.n,), generator=self.generator).tolist()
        return (batch for size in sizes if (batch := list(islice(order, size))))


class Stream(IterableDataset[Tensor]):
    """Every `of`-th number, from `index` on."""

    def __init__(self, n: int, of: int = 1, index: int = 0) -> None:
        self.n, self.of, self.index = n, of, index

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, range(self.index, self.n, self.of))


class Stateful(Stream):
    begin, at = 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        begin, self.begin = self.begin, 0
        for at, number in enumerate(super().__iter__(), start=1):
            if at > begin:
                self.at = at
                yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]


class Shardable(Stream):
    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(self.n, num_shards, index)


class StatefulShards(Stream):
    def shard(self, num_shards: int, index: int) -> Stateful:
        return Stateful(self.n, num_shards, index)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


SAMPLERS: dict[str, Callable[[int], Sampler[int] | None]] = {
    "sequential": lambda n: None,
    "seedable": lambda n: SeedableRandomSampler(range(n), data_seed=5),
    "weighted": lambda n: WeightedRandomSampler([1.0] * n, n, generator=generator()),
    "subset": lambda n: SubsetRandomSampler(range(0, n, 2), generator=generator()),
    "hidden": ByPasses,
}
STREAMS: dict[str, Callable[[int], IterableDataset[Tensor]]] = {
    "stream": RangeStream,
    "stateful": Stateful,
    "shards": Shardable,
    "stateful shards": StatefulShards,
}


def script(kind: str, n: int, size: int) -> DataLoader[Any]:
    if kind in STREAMS:
        return DataLoader(STREAMS[kind](n), size)
    if kind == "buckets":
        return DataLoader(RangeDataset(n), batch_sampler=Buckets(n))
    if kind == "shuffled":
        return DataLoader(RangeDataset(n), size, shuffle=True, generator=generator())
    if kind == "shuffled by default":
        return DataLoader(RangeDataset(n), size, shuffle=True)
    return DataLoader(RangeDataset(n), size, sampler=SAMPLERS[kind](n))


def step_of(loaders: list[Any], parts: tuple[Tensor | None, ...]) -> list[int]:
    """What the job has in hand, in rank order, less what fills it up."""
    found = []
    for loader, part in zip(loaders, parts, strict=True):
        tail = loader.accumulation.active.tail
        found += (
            part.tolist()[: None if tail is None else tail.real[loader.plan.rank.index]] if part is not None else []
        )
    return found


def simulated(kind: str, n: int, size: int, world: int, every: int, ending: str) -> list[Any]:
    return [
        prepare_data_loader(
            script(kind, n, size),
            num_processes=world,
            process_index=rank,
            ending=ending,
            accumulation=AccumulationState(every),
        )
        for rank in range(world)
    ]


def history(kind: str, chance: random.Random) -> None:
    """A job that crashes and changes its size at random, against one process that does not.

    It goes on from any batch, whatever the number of processes and the batch size; and all that it was served and not
    rolled back is the unbroken order.
    """
    n = chance.randrange(1, 150)
    (alone,) = simulated(kind, n, 1, 1, 1, "pad")
    whole = [[one for batch in alone for one in batch.tolist()] for _ in range(2)]
    committed: list[list[int]] = [[], []]
    state, crashes = None, 0
    while state is None or state["epoch"] + state["ended"] < 2:
        world, size = chance.randrange(1, 9), chance.randrange(1, 12)
        loaders = simulated(kind, n, size, world, 1, chance.choice(["pad", "exact"]))
        if state is not None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for loader in loaders:
                    loader.load_state_dict(state)
            step = world if kind == "buckets" else world * size
            assert len(caught) == world * (state["consumed"] > 0 and state["step"] != step)
        served = [list(one) for one in committed]
        left = chance.randrange(1, 12) if crashes < 12 else 10_000
        crashes += 1
        while loaders[0].iteration < 2 and left:
            epoch = loaders[0].iteration
            for parts in zip(*loaders, strict=True):
                served[epoch] += step_of(loaders, parts)
                if chance.random() < 0.4:
                    state, committed = loaders[0].state_dict(), [list(one) for one in served]
                left -= 1
                if not left:
                    break
            else:
                state, committed = loaders[0].state_dict(), [list(one) for one in served]
    assert committed == whole


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.parametrize("kind", [*SAMPLERS, "shuffled", "buckets", "stream", "stateful"])
def test_crashes_and_resizes_leave_the_order_as_it_is(kind: str, cases: Cases) -> None:
    """T5, fault test 19: worlds of 1 to 8, any batch size."""
    for seed in cases(8, 400):
        history(kind, random.Random(f"{kind} {seed}"))


Step = list[int]


def part_of_a_job(
    kind: str, size: int, every: int, dispatch: bool | None, state: Any, steps: int
) -> tuple[list[Step], dict[str, Any]]:
    """The samples of so many optimizer steps from `state` on, and the state after them."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".* samples are read again")
    transport: Transport = TorchDist() if torch.distributed.is_initialized() else Single()
    accumulation = AccumulationState(every)
    torch.manual_seed(10 if state is None else 99 + transport.rank)
    loader: Any = prepare_data_loader(
        script(kind, N, size), transport=transport, accumulation=accumulation, dispatch_batches=dispatch
    )
    if dispatch and transport.size > 1:
        assert isinstance(loader, DataLoaderDispatcher)
    if state is not None:
        loader.load_state_dict(state)
    found: list[Step] = [[]]
    while loader.iteration < EPOCHS:
        for batch in loader:
            due = accumulation.tick()
            found[-1] += chain(*transport.all_gather_objects(batch.tolist()))
            torch.rand(3)
            if due:
                found[-1].sort()
                if len(found) == steps:
                    return found, loader.state_dict()
                found.append([])
    return found[:-1], loader.state_dict()


@pytest.mark.parametrize(
    ("kind", "dispatch", "worlds"),
    [
        ("shuffled", None, [2, 1, 4, 2]),
        ("hidden", None, [4, 2, 1]),
        ("weighted", None, [1, 3, 2]),
        ("shards", None, [2, 1, 4, 2]),
        ("stateful shards", None, [2, 1, 4, 2]),
        ("stream", False, [2, 1, 4]),
        ("stateful", None, [2, 1, 2]),
        ("stateful", False, [1, 2, 4]),
        ("hidden", True, [2, 1, 2]),
        ("stateful", True, [1, 2, 1]),
    ],
)
def test_every_optimizer_step_sees_its_samples_at_any_number_of_processes(
    world: MakePool, kind: str, dispatch: bool | None, worlds: list[int]
) -> None:
    """T5: processes, batch size and accumulation change, and their product does not."""
    pools = {processes: world(processes, join=processes > 1) for processes in {1, *worlds}}
    (whole, _), *_ = pools[1].run(part_of_a_job, kind, TOGETHER, 1, dispatch, None, 999)
    assert len(whole) == EPOCHS * N // TOGETHER
    assert all(len(step) == TOGETHER for step in whole)
    state, done = None, []
    for number, processes in enumerate(worlds):
        every = number % 2 + 1
        size, steps = TOGETHER // processes // every, 7 if number < len(worlds) - 1 else 999
        results = pools[processes].run(part_of_a_job, kind, size, every, dispatch, state, steps)
        more, state = results[0]
        assert [one for one, _ in results] == [more] * processes
        done += more
    assert done == whole


def passes_of_a_job(
    kind: str, size: int, dispatch: bool | None, state: Any, passes: int, at_last: bool
) -> tuple[list[Step], dict[str, Any]]:
    """The samples of each step of so many passes, and the state after them, or at the last batch of the last one."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".* samples are read again")
    transport: Transport = TorchDist() if torch.distributed.is_initialized() else Single()
    torch.manual_seed(10 if state is None else 99 + transport.rank)
    loader: Any = prepare_data_loader(script(kind, N, size), transport=transport, dispatch_batches=dispatch)
    if state is not None:
        loader.load_state_dict(state)
    found: list[Step] = []
    for number in range(passes):
        for batch in loader:
            found.append(sorted(chain(*transport.all_gather_objects(batch.tolist()))))
            torch.rand(3)
            if at_last and number == passes - 1 and loader.accumulation.end_of_dataloader:
                return found, loader.state_dict()
    return found, loader.state_dict()


@pytest.mark.parametrize(
    ("kind", "dispatch"),
    [
        ("shuffled by default", None),
        ("shuffled by default", True),
        ("hidden", True),
        ("shards", None),
        ("stateful shards", None),
        ("stream", None),
        ("stateful", True),
        ("stateful", False),
    ],
)
def test_no_epoch_is_lost_or_served_twice_at_its_end(world: MakePool, kind: str, dispatch: bool | None) -> None:
    """States of the last batch of an epoch, and of the pause after it."""
    pools = {1: world(1, join=False), 2: world(2)}
    (whole, _), *_ = pools[1].run(passes_of_a_job, kind, TOGETHER, dispatch, None, EPOCHS, False)
    assert len(whole) == EPOCHS * N // TOGETHER
    state, done = None, []
    for processes, passes, at_last in [(2, 1, True), (1, 1, False), (2, 1, True)]:
        results = pools[processes].run(passes_of_a_job, kind, TOGETHER // processes, dispatch, state, passes, at_last)
        more, state = results[0]
        assert [one for one, _ in results] == [more] * processes
        done += more
    assert done == whole
    assert state is not None
    assert (state["ended"], state["epoch"]) == (True, EPOCHS - 1)
