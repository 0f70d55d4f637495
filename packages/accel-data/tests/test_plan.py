"""How ranks share the data of a loader is a value, which facts decide without a loader and without a process."""

import logging
from dataclasses import FrozenInstanceError, replace
from math import ceil
from typing import Any

import pytest
from accel_data import DataRank, Ending, LoaderPlan, prepare_data_loader
from accel_data.plan import Exchange, ReadMode, logical_shards, plan_loader
from accel_data.traits import LoaderTraits, traits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numbers_to_load import NumberStream, ShardableStream
from torch.utils.data import BatchSampler, DataLoader

QUICK = settings(derandomize=True, deadline=None)
STREAM = LoaderTraits("Lines", stream=True, batch_size=4)
SHARDED = replace(STREAM, shards=12, shardable=True)
SHOWN = """\
rank       1 of 2
read       by index: each rank reads its own samples of a map-style dataset
round      8 samples, 4 for each rank
ending     pad: samples from the start fill the last round
exchanged  nothing
noted      how many samples of the order were served"""

SHOWN_OF_A_STREAM = """\
rank       0 of 2
read       at the source: in 8 logical shards of its 12, for 4 readers
round      8 samples, 4 for each rank
ending     pad: samples from the start fill the last round
exchanged  fingerprints of the dataset (once), random states (each epoch), votes (each batch)
noted      how many samples of each of 8 shards were served"""


def plan_of_two(traits: LoaderTraits, **asked: Any) -> LoaderPlan:
    """The plan of rank 1 of two that are connected."""
    return plan_loader(traits, DataRank(1, 2), size=2, **asked)


def test_a_plan_is_printed_in_six_lines() -> None:
    loader: Any = prepare_data_loader(DataLoader[Any](range(10), 4), num_processes=2, process_index=1)  # type: ignore[arg-type]
    assert str(loader.plan) == SHOWN
    assert str(plan_loader(replace(SHARDED, workers=2), DataRank(0, 2), size=2)) == SHOWN_OF_A_STREAM
    assert "2 batches, 1 for each rank" in str(plan_of_two(replace(STREAM, batch_size=None)))


def test_a_plan_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        LoaderPlan(DataRank(0, 1)).rows = 3  # type: ignore[misc] # it is frozen


MODES: dict[str, tuple[LoaderTraits, dict[str, Any], ReadMode, str]] = {
    "map-style": (LoaderTraits(), {}, ReadMode.BY_INDEX, "FINGERPRINTS GENERATORS"),
    "unchecked": (LoaderTraits(), {"check_datasets": False}, ReadMode.BY_INDEX, "GENERATORS"),
    "asked for": (
        LoaderTraits(),
        {"dispatch_batches": True},
        ReadMode.BY_RANK_ZERO,
        "FINGERPRINTS GENERATORS BATCHES",
    ),
    "stream": (STREAM, {}, ReadMode.BY_RANK_ZERO, "FINGERPRINTS GENERATORS BATCHES"),
    "one order": (
        STREAM,
        {"dispatch_batches": False},
        ReadMode.BY_EVERY_RANK,
        "FINGERPRINTS FIRST_SAMPLE GENERATORS",
    ),
    "seeded": (
        replace(STREAM, seeded=True),
        {"check_datasets": "warn"},
        ReadMode.BY_EVERY_RANK,
        "FINGERPRINTS GENERATORS",
    ),
    "shards": (SHARDED, {}, ReadMode.IN_SHARDS, "FINGERPRINTS GENERATORS VOTES"),
    "ends apart": (SHARDED, {"ending": "join"}, ReadMode.IN_SHARDS, "FINGERPRINTS GENERATORS"),
    "too few shards": (
        replace(SHARDED, shards=1),
        {},
        ReadMode.BY_RANK_ZERO,
        "FINGERPRINTS GENERATORS BATCHES",
    ),
    "own part": (STREAM, {"already_sharded": True}, ReadMode.OWN_PART, "GENERATORS VOTES"),
}


@pytest.mark.parametrize("kind", MODES)
def test_who_reads_decides_what_is_exchanged(kind: str) -> None:
    traits, asked, mode, exchanges = MODES[kind]
    plan = plan_of_two(traits, **asked)
    assert plan.mode is mode
    assert plan.exchanges == {Exchange[name] for name in exchanges.split()}
    assert plan.reads == (DataRank(0, 1) if mode is ReadMode.BY_RANK_ZERO else plan.rank)


def test_without_a_transport_nothing_is_exchanged_and_every_rank_reads() -> None:
    for traits in (LoaderTraits(), STREAM, SHARDED):
        plan = plan_loader(traits, DataRank(1, 2))
        assert (plan.exchanges, plan.reads) == (frozenset(), DataRank(1, 2))


def test_processes_that_are_served_the_same_compare_values_too() -> None:
    plan = plan_loader(LoaderTraits(), DataRank(0, 1), size=1, copies=2)
    assert not plan.alone
    assert plan.check == "error"
    assert plan_loader(LoaderTraits(), DataRank(0, 1), size=1).alone


@pytest.mark.parametrize(
    ("traits", "level", "words"),
    [
        (SHARDED, logging.INFO, "Lines is read at the source: in 8 logical shards of its 12, for 2 readers"),
        (replace(SHARDED, shards=1), logging.WARNING, "its 1 shards cannot be divided equally among 2 readers"),
        (replace(STREAM, rank_names=("RANK",)), logging.WARNING, "Lines.__iter__ reads the rank (RANK)"),
    ],
)
def test_the_log_says_how_a_stream_is_read(traits: LoaderTraits, level: int, words: str) -> None:
    assert any(found == level and words in text for found, text in plan_of_two(traits).notes)
    assert plan_loader(traits, DataRank(0, 1)).notes == ()


def test_orders_that_may_differ_are_warned_of() -> None:
    unseeded = LoaderTraits(drawn_by="RandomSampler")
    (warning,) = plan_loader(unseeded, DataRank(1, 2)).warnings
    assert "RandomSampler has no generator, so each of the 2 ranks draws an order of its own" in warning
    others = [plan_of_two(unseeded), plan_loader(replace(unseeded, seeded=True), DataRank(1, 2))]
    assert [plan.warnings for plan in others] == [(), ()]
    shuffled = replace(STREAM, unseeded_shuffle=True)
    assert [len(plan_loader(shuffled, DataRank(rank, 2)).warnings) for rank in range(2)] == [1, 0]


@pytest.mark.parametrize(
    ("traits", "asked", "words"),
    [
        (LoaderTraits(distributed=True), {}, "a DistributedSampler, which gives each process its share already"),
        (LoaderTraits(), {"ending": "stop"}, "ending='stop': expected one of 'pad', 'drop', 'exact', 'join'"),
        (LoaderTraits(), {"dispatch_batches": True, "ending": "join"}, "asks for unequal ones; give one of them up"),
        (LoaderTraits(), {"dispatch_batches": True, "size": None}, "it needs their transport"),
        (STREAM, {"dispatch_batches": True, "already_sharded": True}, "rank 0 reads for all; give one of them up"),
    ],
)
def test_what_conflicts_is_refused_without_a_loader(traits: LoaderTraits, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_loader(traits, DataRank(0, 2), **{"size": 2} | asked)


@QUICK
@given(st.none() | st.integers(1, 200), st.integers(1, 24), st.booleans())
def test_readers_get_equally_many_logical_shards_or_none(own: int | None, readers: int, even: bool) -> None:
    shards = logical_shards(own, readers, even=even)
    if shards is None:
        assert own is not None
        assert own < 8 * readers
    else:
        assert shards % readers == 0
        assert shards <= min(8 * readers, own or 8 * readers)
        if even and own is not None:
            assert own % shards == 0 or own >= 8 * readers


SETTINGS: dict[str, Any] = {
    "ending": st.sampled_from(Ending),
    "world": st.integers(1, 4),
    "rows": st.integers(1, 4),
    "n": st.integers(1, 40),
    "split": st.booleans(),
}


def loaders(kind: str, n: int, size: int) -> DataLoader[Any]:
    """A loader of each kind, with batches of `size`."""
    if kind == "map":
        return DataLoader[Any](range(n), size)  # type: ignore[arg-type] # a range is data too
    if kind == "own batches":
        return DataLoader[Any](range(n), batch_sampler=Reversed(range(n), size, False))  # type: ignore[arg-type]
    return DataLoader((NumberStream if kind == "stream" else ShardableStream)(range(n)), size)


class Reversed(BatchSampler):
    """Cuts batches in a way of its own."""

    def __iter__(self) -> Any:
        return iter([batch[::-1] for batch in super().__iter__()])


@QUICK
@given(kind=st.sampled_from(["map", "own batches", "stream", "shards"]), **SETTINGS)
def test_a_loader_does_what_its_plan_says(
    kind: str, ending: Ending, world: int, rows: int, n: int, split: bool
) -> None:
    size = rows * world if split else rows
    for rank in range(world):
        asked: dict[str, Any] = {"ending": ending, "split_batches": split}
        plan = plan_loader(traits_of(loaders(kind, n, size)), DataRank(rank, world), **asked)
        made = loaders(kind, n, size)
        loader: Any = prepare_data_loader(made, num_processes=world, process_index=rank, **asked)
        assert loader.plan == plan
        state = loader.fresh()
        assert (plan.rows, plan.unit, plan.round) == (loader.rows, state.unit, state.step)
        assert plan.shards in (None, state.streams)
        if plan.unit == "samples" and ending in (Ending.REPEAT, Ending.DROP) and world > 1:
            rounds = n // plan.round if ending is Ending.DROP else ceil(n / plan.round)
            assert len(list(loader)) == rounds


@pytest.mark.parametrize("traits", [LoaderTraits(), STREAM])
def test_the_log_says_that_rank_0_reads_for_more_than_64(traits: LoaderTraits) -> None:
    def told(ranks: int, copies: int = 1) -> bool:
        plan = plan_loader(traits, DataRank(0, ranks), size=ranks, copies=copies, dispatch_batches=True)
        return any(f"sends each of the {ranks * copies - 1} others" in text for _, text in plan.notes)

    assert [told(64), told(65), told(16, 8)] == [False, True, True]
