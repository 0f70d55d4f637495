"""Places that are easy to lose: before the first batch, with workers that live on, beside a skip, on one rank only."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import ResumeError, SeedableRandomSampler, prepare_data_loader, skip_first_batches
from accel_data.resume.sampling_rng import SamplingRng
from accel_state.data_ranks import DataRanks
from accel_testing import MakePool
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader, IterableDataset, Sampler

State = dict[str, Any]


def loader(n: int = 20, *, own: bool = True, **more: Any) -> Any:
    generator = torch.Generator().manual_seed(3) if own else None
    plain = DataLoader(RangeDataset(n), 2, shuffle=True, generator=generator, **more)
    return prepare_data_loader(plain)


def ids(passed: Any) -> list[int]:
    return [number for batch in passed for number in batch.tolist()]


def place_after(one: Any, steps: int) -> State:
    for step, _ in enumerate(one, start=1):
        state: State = one.state_dict()
        if step == steps:
            break
    return state


def test_a_place_that_was_loaded_is_told_before_the_first_batch() -> None:
    state = place_after(loader(), 3)
    again = loader()
    again.load_state_dict(state)
    assert str(again.state_dict()) == str(state)
    third = loader()
    third.load_state_dict(again.state_dict())
    assert ids(third) == ids(loader())[6:]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("between", [False, True])
def test_workers_that_live_on_draw_the_same_orders_after_a_resume(own: bool, between: bool) -> None:
    """torch draws a seed for workers only when it makes them."""
    torch.manual_seed(5)
    one = loader(own=own, num_workers=1, persistent_workers=True)
    list(one)
    state = one.state_dict() if between else None
    second: list[int] = []
    for step, batch in enumerate(one, start=1):
        second += batch.tolist()
        if step == 3 and not between:
            state = one.state_dict()
    third = ids(one)
    assert state is not None
    torch.manual_seed(77)
    again = loader(own=own, num_workers=1, persistent_workers=True)
    again.load_state_dict(state)
    assert ids(again) == (second if between else second[6:])
    assert ids(again) == third


def test_a_skip_after_a_load_leaves_nothing_out_twice() -> None:
    """What scripts do that skipped by hand before: the place wins, and the loader itself goes on after it."""
    whole = ids(loader())
    state = place_after(loader(), 3)
    again = loader()
    again.load_state_dict(state)
    assert ids(skip_first_batches(again, 3)) == whole[6:]
    assert len(ids(again)) == 20


def test_a_skip_of_a_plain_loader_begins_at_the_epoch_of_its_sampler() -> None:
    sampler = SeedableRandomSampler(range(20), data_seed=5)
    plain = DataLoader(RangeDataset(20), 2, sampler=sampler)
    zero, one, two = (ids(plain) for _ in range(3))
    sampler.set_epoch(1)
    rest = skip_first_batches(plain, 3)
    assert ids(rest) == one[6:]
    assert ids(rest) == two[6:]
    sampler.set_epoch(0)
    assert ids(skip_first_batches(plain, 0)) == zero
    assert ids(plain) == one


def dispatched_after(state: State | None, skip: int) -> tuple[list[int], State]:
    plain: Any = DataLoader(RangeDataset(24), 2)
    one: Any = prepare_data_loader(plain, transport=TorchDist(), dispatch_batches=True)
    if state is not None:
        one.load_state_dict(state)
        assert str(one.state_dict()) == str(state)
        return ids(skip_first_batches(one, skip)), state
    return [], place_after(one, 2)


def test_a_dispatched_place_wins_over_a_skip(world: MakePool) -> None:
    (_, state), _ = world(2).run(dispatched_after, None, 0)
    (zero, _), (one, _) = world(2).run(dispatched_after, state, 2)
    assert sorted(zero + one) == list(range(8, 24))


class Placed(IterableDataset[list[int]]):
    """Batches of a stream that can be put at a place."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < 6:
            self.at += 1
            yield [self.at - 1]


def test_batches_of_a_stream_are_not_read_before_they_are_served() -> None:
    def stream() -> Any:
        return prepare_data_loader(DataLoader(Placed(), batch_size=None))

    state = place_after(stream(), 2)
    again = stream()
    again.load_state_dict(state)
    assert list(again) == [[2], [3], [4], [5]]


def test_the_seed_of_a_seedable_order_is_in_the_state() -> None:
    def seeded(seed: int) -> Any:
        torch.manual_seed(seed)
        return prepare_data_loader(DataLoader(RangeDataset(20), 2, sampler=SeedableRandomSampler(range(20))))

    one = seeded(1)
    list(one)
    state = one.state_dict()
    again = seeded(2)
    again.load_state_dict(state)
    assert ids(again) == ids(one)


class Hidden(Sampler[int]):
    """An order that differs on the ranks and comes from nowhere on rank 1."""

    def __init__(self, repeats: bool) -> None:
        self.draws, self.repeats = random.Random(4), repeats

    def __iter__(self) -> Iterator[int]:
        if self.repeats:
            return iter(range(200))
        return iter(self.draws.sample(range(200), 200))

    def __len__(self) -> int:
        return 200


def refusal() -> str:
    transport = TorchDist()
    one: Any = prepare_data_loader(DataLoader(RangeDataset(200), 40, sampler=Hidden(True)), transport=transport)
    state = place_after(one, 2)
    changed = Hidden(transport.rank == 0)
    again: Any = prepare_data_loader(DataLoader(RangeDataset(200), 40, sampler=changed), transport=transport)
    again.load_state_dict(state)
    with pytest.raises(ResumeError) as error:
        next(iter(again))
    return str(error.value)


def test_what_one_rank_refuses_all_refuse(world: MakePool) -> None:
    """Nobody waits for a rank that raised."""
    zero, one = world(2).run(refusal, timeout_s=20)
    assert zero.startswith("rank 1 cannot continue: the sampler does not repeat its order")
    assert one.startswith("the sampler does not repeat its order")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"consumed": "3"}, "consumed is '3'"),
        ({"rng_at_start": []}, "rng_at_start is []"),
        ({"drawn_by": "BatchOf"}, "was drawn by BatchOf and is drawn by RandomSampler now"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused(entries: State, words: str) -> None:
    with pytest.raises(ResumeError) as error:
        loader().load_state_dict(place_after(loader(), 3) | entries)
    assert words in str(error.value)


class Rewinding(IterableDataset[int]):
    """Goes back to its front when it has ended, as a source does that serves more than one epoch."""

    def __init__(self, n: int, at: int = 0, step: int = 1) -> None:
        self.n, self.first, self.at, self.step = n, at, at, step

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += self.step
            yield self.at - self.step
        self.at = self.first

    def state_dict(self) -> State:
        return {"at": self.at}

    def load_state_dict(self, state: State) -> None:
        self.at = state["at"]


class RewindingShards(Rewinding):
    def shard(self, num_shards: int, index: int) -> Rewinding:
        return Rewinding(self.n, index, num_shards)


@pytest.mark.grid(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Rewinding, RewindingShards])
@pytest.mark.parametrize("n", [20, 22, 23])
def test_a_source_that_rewinds_itself_is_not_served_twice(kind: Any, n: int, workers: int) -> None:
    """Its own state at the last, short batch is that of its front."""

    def stream() -> Any:
        return prepare_data_loader(DataLoader(kind(n), 4, num_workers=workers))

    copies = workers if workers and kind is Rewinding else 1  # torch gives each worker all of a plain stream
    one, served, states = stream(), list[int](), list[tuple[int, State]]()
    for batch in one:
        served += batch.tolist()
        states.append((len(served), one.state_dict()))
    assert sorted(served) == sorted([*range(n)] * copies)
    for count, state in states:
        again = stream()
        again.load_state_dict(state)
        rest = [] if state["ended"] else ids(again)
        assert sorted(served[:count] + rest) == sorted(served), f"after {count}"
        assert sorted(ids(again)) == sorted(served), f"the epoch that follows, after {count}"


def drawn_like_the_first() -> tuple[float, float, list[int]]:
    """Numbers of a process before and after it follows the first with its data, and the bytes told to all meanwhile."""
    world, told = TorchDist(), list[int]()
    torch.manual_seed(world.rank)
    generator = torch.Generator().manual_seed(3 + world.rank)
    before = float(torch.rand(1, generator=generator))
    rng = SamplingRng(DataLoader(RangeDataset(2), generator=generator))
    exchange = world.exchange

    def noting(what: str, payload: bytes = b"") -> list[bytes]:
        told.append(len(payload))
        return exchange(what, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "exchange", noting)
        rng.follow_first_copy(DataRanks(world, 2), None)
    return before, float(torch.rand(1, generator=generator)), told


def test_a_process_that_is_served_the_same_hears_of_the_first_and_no_other(world: MakePool) -> None:
    ranks = world(4).run(drawn_like_the_first)
    after = [number for _, number, _ in ranks]
    assert len({before for before, _, _ in ranks}) == 4
    assert after[0] == after[1] != after[2] == after[3]
    assert [told for _, _, told in ranks] == [[]] * 4


def streamed() -> Any:
    return prepare_data_loader(DataLoader(RewindingShards(20), 2))


def shuffled() -> Any:
    return loader(own=False)


def seeded() -> Any:
    plain: Any = DataLoader(RangeDataset(20), 2, shuffle=True)
    return prepare_data_loader(plain, use_seedable_sampler=True, data_seed=5)


@pytest.mark.parametrize("by_continue", [True, False])
@pytest.mark.parametrize("make", [shuffled, seeded, streamed])
@pytest.mark.parametrize("served", [3, 10])
def test_a_script_skips_by_itself_once_a_loader_is_rewound(make: Any, served: int, by_continue: bool) -> None:
    """In the second epoch, or the third if the state is that of the last batch."""
    torch.manual_seed(5)
    one = make()
    list(one)
    second: list[int] = []
    for step, batch in enumerate(one, start=1):
        second += batch.tolist()
        if step == served:
            state, random_state = one.state_dict(), torch.get_rng_state()
    third = ids(one)
    again = make()
    again.load_state_dict(state)
    torch.set_rng_state(random_state)
    again.rewind()
    assert again.iteration == 1 + served // 10
    skip = served % 10
    kept = islice(again, skip, None) if by_continue else skip_first_batches(again, skip)
    assert ids(kept) == (second[6:] if skip else third)
    assert skip == 0 or ids(again) == third
