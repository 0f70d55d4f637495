"""T1: a loader that is put back to where a state was taken serves what the unbroken run serves from there."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from accel_data import DataLoaderShard, SeedableRandomSampler, prepare_data_loader
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from numbers_to_load import Numbers
from suite.soak import Cases, in_soak
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)


class Order(Sampler[int]):
    """The numbers 0 to n - 1, in an order that `draw` makes when a pass starts."""

    def __init__(self, n: int, draw: Callable[[int], list[int]]) -> None:
        self.n, self.draw = n, draw

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self.n))

    def __len__(self) -> int:
        return self.n


class ByGenerator(Order):
    def __init__(self, n: int) -> None:
        super().__init__(n, lambda n: torch.randperm(n, generator=self.generator).tolist())
        self.generator = torch.Generator().manual_seed(n)


class ByEpoch(Order):
    def __init__(self, n: int) -> None:
        super().__init__(n, lambda n: random.Random(self.epoch).sample(range(n), n))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class ByPasses(Order):
    """Counts its passes, and can be told how many there were."""

    def __init__(self, n: int) -> None:
        super().__init__(n, lambda n: random.Random(self.passes).sample(range(n), n))
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes = state["passes"]


class Buckets(Sampler[list[int]]):
    """Batches in an order of its own: of 1 to `size` samples, or `sized` of that many."""

    def __init__(self, n: int, size: int, *, sized: bool = False) -> None:
        self.n, self.size, self.sized = n, size, sized
        self.generator = torch.Generator().manual_seed(n)
        if sized:
            self.batch_size = size

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(torch.randperm(self.n, generator=self.generator).tolist())
        sizes = torch.randint(1, self.size + 1, (self.n,), generator=self.generator).tolist()
        for size in sizes:
            if batch := list(islice(order, self.size if self.sized else size)):
                yield batch

    def __len__(self) -> int:
        raise TypeError("nobody knows")


def in_order(n: int) -> list[int]:
    return list(range(n))


class Stream(IterableDataset[Tensor]):
    """The numbers 0 to n - 1, in an order that `draw` makes when a pass starts."""

    def __init__(self, n: int, draw: Callable[[int], list[int]] = in_order) -> None:
        self.n, self.draw = n, draw

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, self.draw(self.n))


class OwnGenerator(Stream):
    def __init__(self, n: int) -> None:
        super().__init__(n, lambda n: torch.randperm(n, generator=self.generator).tolist())
        self.generator = torch.Generator().manual_seed(n)


class ByWorker(Stream):
    """Divides itself among loader workers, unevenly."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        cuts = [0, self.n] if worker is None else [0, self.n // 3, self.n]
        return map(torch.tensor, range(*cuts[0 if worker is None else worker.id :][:2]))


class Stateful(Stream):
    """Says where it stands, in a dictionary that may be `alive`, and begins one pass where it was put."""

    def __init__(self, n: int, *, alive: bool = False, of: int = 1, index: int = 0) -> None:
        super().__init__(n)
        self.alive, self.of, self.index = alive, of, index
        self.place = {"at": 0}
        self.begin = 0

    def __iter__(self) -> Iterator[Tensor]:
        first, self.begin = self.begin, 0
        self.place["at"] = first  # which may be the end
        for at, number in enumerate(range(self.index, self.n, self.of)):
            if at >= first:
                self.place["at"] = at + 1
                yield torch.tensor(number)

    def state_dict(self) -> dict[str, Any]:
        return self.place if self.alive else dict(self.place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["at"]


class Shardable(Stream):
    def shard(self, num_shards: int, index: int) -> Stream:
        return Stream(self.n, lambda n: list(range(index, n, num_shards)))


class StatefulShards(Stateful):
    def shard(self, num_shards: int, index: int) -> Stateful:
        return Stateful(self.n, of=num_shards, index=index)


@dataclass(frozen=True)
class Case:
    """A job: how its data is made, its worlds, and after how many batches each epoch is left."""

    kind: str
    n: int
    size: int = 2
    world: int = 1
    workers: int = 0
    drop_last: bool = False
    ending: str | None = None
    breaks: tuple[int | None, ...] = (None, None, None)


SAMPLERS: dict[str, Callable[[int], Sampler[Any] | None]] = {
    "sequential": lambda n: None,
    "seedable": lambda n: SeedableRandomSampler(range(n), data_seed=5),
    "weighted": lambda n: WeightedRandomSampler([1.0, 2.0] * n, n, generator=torch.Generator().manual_seed(5)),
    "subset": lambda n: SubsetRandomSampler(range(0, n, 2), generator=torch.Generator().manual_seed(5)),
    "replacing": lambda n: RandomSampler(range(n), replacement=True, generator=torch.Generator().manual_seed(5)),
    "fewer": lambda n: RandomSampler(range(n), num_samples=(n + 1) // 2, generator=torch.Generator().manual_seed(5)),
    "more": lambda n: RandomSampler(range(n), num_samples=2 * n + 1, generator=torch.Generator().manual_seed(5)),
    "own order": ByGenerator,
    "by epoch": ByEpoch,
    "with a state": ByPasses,
}
#: of these each rank would draw an order of its own, unless a transport tells it that of rank 0
ALONE: dict[str, Callable[[int], Sampler[Any]]] = {
    "by python": lambda n: Order(n, lambda n: random.sample(range(n), n)),
    "by numpy": lambda n: Order(n, lambda n: numpy.random.permutation(n).tolist()),
    "by default": lambda n: Order(n, lambda n: torch.randperm(n).tolist()),
    "weighted by default": lambda n: WeightedRandomSampler([1.0, 2.0] * n, n),
    "subset by default": lambda n: SubsetRandomSampler(range(n)),
    "replacing by default": lambda n: RandomSampler(range(n), replacement=True),
}
STREAMS: dict[str, Callable[[int], Stream]] = {
    "stream": Stream,
    "stream with a generator": OwnGenerator,
    "stream with a state": Stateful,
    "stream with a live state": lambda n: Stateful(n, alive=True),
}
STREAMS_ALONE: dict[str, Callable[[int], Stream]] = {
    "stream by worker": ByWorker,
    "stream by default": lambda n: Stream(n, lambda n: torch.randperm(n).tolist()),
    "stream by python": lambda n: Stream(n, lambda n: random.sample(range(n), n)),
    "shards": Shardable,
    "shards with a state": StatefulShards,
}
OTHERS = ["shuffled", "buckets", "sized buckets", "batches one by one", "elements one by one"]
ONE_PROCESS = [*ALONE, *STREAMS_ALONE, "shuffled by default"]
IN_WORKERS: list[object] = ["shuffled by default", "buckets", "with a state", "stream by worker", "shards with a state"]
IN_WORKERS += ["stream with a live state", "stream with a state of batches"]
IN_WORKERS += in_soak("shuffled", "by python", "stream of batches", "stream", "stream with a generator")
IN_WORKERS += in_soak("stream with a state", "stream by default", "stream by python", "shards")
KINDS = [*SAMPLERS, *OTHERS, *STREAMS, *[f"{kind} of batches" for kind in STREAMS], *ONE_PROCESS]


def made(case: Case) -> DataLoader[Any]:
    """The script's own loader."""
    n, size, data = case.n, case.size, Numbers(case.n)
    common: dict[str, Any] = {"num_workers": case.workers}
    alone: Any = case.kind.removesuffix(" of batches")
    if alone in STREAMS | STREAMS_ALONE:
        common |= {"batch_size": None} if alone != case.kind else {"batch_size": size, "drop_last": case.drop_last}
        return DataLoader((STREAMS | STREAMS_ALONE)[alone](n), **common)
    if case.kind.endswith("buckets"):
        return DataLoader(data, batch_sampler=Buckets(n, size, sized="sized" in case.kind), **common)
    if case.kind == "batches one by one":
        batches: Any = BatchSampler(ByGenerator(n), size, case.drop_last)
        return DataLoader(data, sampler=batches, batch_size=None, **common)
    if case.kind == "elements one by one":
        return DataLoader(data, sampler=ByGenerator(n), batch_size=None, **common)
    common["drop_last"] = case.drop_last
    if case.kind == "shuffled":
        return DataLoader(data, size, shuffle=n > 0, generator=torch.Generator().manual_seed(5), **common)
    if case.kind == "shuffled by default":
        return DataLoader(data, size, shuffle=n > 0, **common)
    return DataLoader(data, size, sampler=(SAMPLERS | ALONE)[case.kind](n), **common)


def prepared(case: Case, seed: int | None = None) -> list[DataLoaderShard[Any]]:
    """The loaders of a process that has just started, for every rank: nothing of an earlier one is left."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    loaders = []
    for rank in range(case.world):
        loader = prepare_data_loader(made(case), num_processes=case.world, process_index=rank, ending=case.ending)
        assert isinstance(loader, DataLoaderShard)
        loaders.append(loader)
    return loaders


Event = tuple[str, int, Any]


def events(case: Case, loaders: list[DataLoaderShard[Any]], epoch: int = 0, done: int | None = None) -> Iterator[Event]:
    """What a job serves: each pause between epochs, and each step of all ranks.

    `epoch` and `done` say where it was put back: after so many steps, or before the epoch.
    """
    while epoch < len(case.breaks):
        if done is None:
            yield "pause", epoch, None
        step = done or 0
        done = None
        for parts in zip(*loaders, strict=True):
            step += 1
            random.random()
            numpy.random.rand()
            noise = torch.rand(()).item() if case.world == 1 else None
            yield "step", epoch, (step, [real(*one) for one in zip(loaders, parts, strict=True)], noise)
            if step == case.breaks[epoch]:
                break
        epoch += 1
    yield "pause", epoch, None


def real(loader: DataLoaderShard[Any], batch: Tensor) -> list[int]:
    """What a rank has in hand, less what only fills it up."""
    ids: list[int] = batch.reshape(-1).tolist()
    tail = loader.accumulation.active.tail if loader.accumulation.active is not None else None
    return ids if tail is None else ids[: tail.real[loader.plan.rank.index]]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """What comes back of a state that was written as JSON, its tensors as lists; nothing else may be in it."""

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            assert value.device.type == "cpu"
            return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return [plain(one) for one in value] if type(value) is list else value

    def back(value: dict[str, Any]) -> Any:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"])) if "tensor" in value else value

    text = json.dumps(plain(state), allow_nan=False)
    assert json.loads(text) == plain(state)  # no tuple, no number as a key
    found: dict[str, Any] = json.loads(text, object_hook=back)
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def equal(mine: Any, yours: Any) -> bool:
        if isinstance(mine, Tensor):
            return torch.equal(mine, yours)
        if isinstance(mine, dict):
            return mine.keys() == yours.keys() and all(equal(mine[name], yours[name]) for name in mine)
        return bool(mine == yours)

    return equal(one, other)


def told(loaders: list[DataLoaderShard[Any]]) -> dict[str, Any]:
    """The state, which all ranks tell alike, but for generators of which rank 0 knows more."""
    state, *others = [loader.state_dict() for loader in loaders]
    for other in others:
        assert same({**other, "rng_at_start": 0, "rng_now": 0}, {**state, "rng_at_start": 0, "rng_now": 0})
    return state


def check(case: Case, places: list[float]) -> int:
    """Kills and resumes the job at these places, and once more at later ones; how many places that were.

    A place is a share of all events. That a resumed job tells the same states as the unbroken one makes it as good to
    resume from.
    """
    whole = list(events(case, prepared(case, seed=1)))
    stops = {int(place * (len(whole) - 1)) for place in places}
    asked = stops | set(range(0, len(whole), max(len(whole) // 24, 1)))
    first, states = prepared(case, seed=1), {}
    for number, event in enumerate(events(case, first)):
        assert event == whole[number], "asking for a state changed what is served"
        if number in asked:
            states[number] = told(first)
    kills = 0
    for stop in stops:
        kind, epoch, about = whole[stop]
        if kind == "step" and about[0] == case.breaks[epoch]:
            continue  # a loop that leaves here does not come back, whatever the loader says
        again, inside = prepared(case), kind == "step"
        for loader in again:
            loader.load_state_dict(through_a_file(states[stop]))
        ended = states[stop]["ended"]  # at the last batch of an epoch, so that the next one begins
        found = events(case, again, epoch + ended, about[0] if inside and not ended else None)
        for event, number in zip(found, range(stop + inside, len(whole)), strict=True):
            assert event == whole[number], f"resumed after {whole[stop]}"
            pause = ended and number == stop + 1  # the end of an epoch, and the pause after it, are the same place
            assert pause or number not in asked or same(told(again), states[number]), f"resumed after {whole[stop]}"
        kills += 1
    return kills


replays = pytest.mark.filterwarnings("ignore:.* samples are read again")


@replays
@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_serves_what_was_due(kind: str, cases: Cases) -> None:
    """T1: some 100 jobs in the suite and 1,300 in a soak, each killed at one to three places."""

    numbers = cases(3, 36)

    # a failure is not made smaller: that takes minutes
    @seed(numbers.start)
    @settings(max_examples=len(numbers), deadline=None, database=None, phases=[Phase.generate])
    @given(
        n=st.one_of(*[st.integers(1, 60)] * 5, st.integers(61, 60 * len(numbers))),
        size=st.integers(1, 9),
        world=st.integers(1, 1 if kind in ONE_PROCESS else 4),
        drop_last=st.just(False) if kind.endswith((" of batches", "one by one")) else st.booleans(),
        ending=st.sampled_from([None, None, "pad", "drop", "exact"]),
        breaks=st.tuples(*[st.one_of(st.none(), st.integers(1, 20))] * 3),
        places=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    )
    def tried(n: int, size: int, places: list[float], **job: Any) -> None:
        check(Case(kind, n, max(size, n // 250), **job), places)  # not too many batches

    tried()


@replays
@pytest.mark.parametrize("kind", IN_WORKERS)
def test_loader_workers_change_nothing_of_it(kind: str) -> None:
    assert check(Case(kind, 23, 3, workers=2, breaks=(None, 3)), [0.3, 0.9]) == 2
