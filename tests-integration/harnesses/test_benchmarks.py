"""The harness that measures: what it counts is right; how long anything takes is not looked at."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accel_testing import MakePool
from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.contestants import raw
from benchmarks.contestants.accel import Accel
from benchmarks.data import BATCH_SIZE, Table, in_blocks, shuffled, stream_that_shards, streamed
from benchmarks.measure import CONTROL, Effort, measure
from benchmarks.processes import report as measured
from benchmarks.result import Result, Spread
from benchmarks.row import Lineup, Repetition, Row, Skipped
from benchmarks.rows import ROWS, exchange
from benchmarks.team import Alone, Group
from benchmarks.timing import per_batch
from torch.utils.data import DataLoader

TAKES = {"raw": 2.0, "accel": 2.5, "accelerate": 6.0}
QUICK = Effort(quick=True)


@pytest.fixture(autouse=True, scope="module")
def _quick_collections() -> None:
    """A row collects garbage before each repetition, which would look through all that a long session has loaded."""
    gc.collect()
    gc.freeze()


def takes() -> Lineup:
    return Lineup({name: partial(float, seconds) for name, seconds in TAKES.items()})


def cannot() -> Repetition:
    raise Skipped("pip install it")


def without_accelerate() -> Lineup:
    return Lineup.of({"raw": lambda: lambda: 1.0, "accelerate": cannot})


def nobody() -> Lineup:
    return Lineup.of({"raw": cannot})


def in_a_group(row: Row) -> Result | None:
    return measured(row, dist.get_rank(), Group(), QUICK)


def contestants_of(rows: list[Row]) -> list[list[str]]:
    return [list(row.build().contestants) for row in rows]


def first_numbers_after(consumed: int) -> list[int]:
    start = Accel().resumed(lambda: DataLoader(Table(8 * BATCH_SIZE), BATCH_SIZE), consumed=consumed)
    return [next(iter(start()))[1][0].item() for _ in range(2)]


def test_contestants_take_turns_and_warm_up_is_forgotten() -> None:
    turns: list[str] = []

    def repetition(name: str) -> Repetition:
        def repeat() -> float:
            turns.append(name)
            return float(len(turns))

        return repeat

    lineup = Lineup({name: repetition(name) for name in ("raw", "accel")})
    samples = measure(Row("turns", takes, 1.1, warm_up=1), lineup, Alone(), QUICK)
    assert turns == ["raw", "accel", "raw"] * 4
    assert samples.took == {"raw": [4.0, 7.0, 10.0], "accel": [5.0, 8.0, 11.0], CONTROL: [6.0, 9.0, 12.0]}


def test_a_ratio_is_the_median_over_rounds_with_its_quartiles() -> None:
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Spread(median=3.0, low=2.0, high=4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(("target", "verdict"), [(1.2, "miss"), (1.25, "pass"), (1.3, "pass")])
def test_a_target_is_met_by_the_median_ratio_of_accel(target: float, verdict: str) -> None:
    found = measured(Row("fixed", takes, target), 0, Alone(), QUICK)
    assert found is not None
    assert {name: spread.median for name, spread in found.ratios.items()} == {
        "accel": 1.25,
        "accelerate": 3,
        CONTROL: 1,
    }
    assert (found.base_median, found.rounds, found.verdict) == (2.0, 3, verdict)


def test_a_target_within_the_spread_is_marked() -> None:
    assert Result("close", 1.1, ratios={"accel": Spread(1.05, 1.0, 1.2)}).verdict == "pass ~"
    assert Result("close", 1.1, ratios={"accel": Spread(1.15, 1.0, 1.2)}).verdict == "miss ~"


def test_a_target_may_be_against_another_than_the_first() -> None:
    found = measured(Row("fixed", takes, 0.5, against="accelerate"), 0, Alone(), QUICK)
    assert found is not None
    assert found.ratios["accel"].median == 1.25
    assert found.verdict == "pass"
    assert "accelerate: 0.417 (0.42-0.42)" in report.cells(found)
    base = measured(Row("fixed", takes, 1.3, against="raw"), 0, Alone(), QUICK)
    assert base is not None
    assert (report.cells(base)[-2:], base.judged) == (("raw", "pass"), base.ratios["accel"])


def test_a_target_against_somebody_absent_is_skipped_in_words() -> None:
    found = measured(Row("one absent", without_accelerate, 0.5, against="accelerate"), 0, Alone(), QUICK)
    assert found is not None
    assert found.verdict == "skipped"
    assert "skipped: the target is against accelerate, which is absent" in report.text([found])


def test_a_target_against_nobody_of_the_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"against='fabric'; expected one of raw, accel, accelerate"):
        measured(Row("fixed", takes, 0.5, against="fabric"), 0, Alone(), QUICK)


def test_who_cannot_take_part_is_named_with_the_reason() -> None:
    found = measured(Row("one absent", without_accelerate, 1.0), 0, Alone(), QUICK)
    assert found is not None
    assert "accelerate is absent: pip install it" in report.text([found])
    none = measured(Row("no raw", nobody, 1.0), 0, Alone(), QUICK)
    assert none is not None
    assert none.verdict == "skipped"
    assert "skipped: pip install it" in report.text([none])


def test_rank_zero_of_a_group_reports(world: MakePool) -> None:
    first, second = world(2).run(in_a_group, Row("two", takes, 1.3, world=2))
    assert first is not None
    assert first.verdict == "pass"
    assert second is None


def test_exchanges_return_what_comes_out_by_hand(world: MakePool) -> None:
    rows = [row for row in exchange.ROWS if "16 MB" not in row.name and "1-2 KB" not in row.name]
    for names in world(2).run(contestants_of, rows):
        assert len(names) == 10
        assert all(found[:2] == ["raw", "accel"] for found in names)


def test_an_exchange_that_returns_something_else_is_no_measurement() -> None:
    assert exchange.same({"a": (torch.ones(2), "text")}, {"a": (torch.ones(2), "text")})
    for other in ({"a": (torch.zeros(2), "text")}, {"a": (torch.ones(2), "")}, {"b": (torch.ones(2), "text")}):
        assert not exchange.same({"a": (torch.ones(2), "text")}, other)


def test_rounds_fill_the_time_within_the_bounds_of_the_row() -> None:
    row = Row("bounded", takes, 1.0, least=5, most=20)
    assert [Effort(seconds=4.0).rounds(row, round_s) for round_s in (0.01, 0.4, 4.0)] == [20, 10, 5]
    assert QUICK.rounds(row, 100.0) == 3


def test_the_table_is_written_for_people_and_programs(tmp_path: Path) -> None:
    found = measured(Row("fixed", takes, 1.3), 0, Alone(), QUICK)
    assert found is not None
    report.write(tmp_path / "out", [found], {"cores": 2})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.json", "bench.md"}
    facts = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert facts["about"] == {"cores": 2}
    assert facts["rows"][0]["ratios"]["accelerate"] == {"median": 3.0, "low": 3.0, "high": 3.0}
    assert "| fixed | 2 s | 1.250 (1.25-1.25) |" in (tmp_path / "out" / "bench.md").read_text()


def test_seeking_starts_where_it_was_asked_to(world: MakePool) -> None:
    assert world(1).run(first_numbers_after, 5 * BATCH_SIZE) == [[5 * BATCH_SIZE] * 2]


def test_a_row_refuses_bounds_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="least=5, most=4"):
        Row("wrong", takes, 1.0, least=5, most=4)


def test_every_row_can_travel_to_a_process_and_has_a_name_of_its_own() -> None:
    assert [pickle.loads(pickle.dumps(row)).name for row in ROWS] == [row.name for row in ROWS]
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_rows_are_listed_by_pattern(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["--list", "--only", "SIMULATED world 512$"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    with pytest.raises(SystemExit):
        main(["--only", "no such row"])
    assert "--only 'no such row': finds none" in capsys.readouterr().err


def test_an_epoch_that_is_too_short_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="asked for 5 batches after the first, the epoch had 2"):
        per_batch([1, 2, 3], batches=5)()


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (shuffled, raw.shuffled_share),
        (in_blocks, raw.batches_share),
        (streamed, raw.stream_share),
        (stream_that_shards, raw.shard_share),
    ],
)
def test_shares_written_by_hand_are_the_whole_when_put_together(
    make: Callable[[int], DataLoader[Any]], share: Callable[..., DataLoader[Any]]
) -> None:
    world, rounds = 4, 3
    size = world * rounds * BATCH_SIZE
    shares = [share(make(size), world=world, rank=rank) for rank in range(world)]
    numbers = [[numbers.tolist() for _, numbers in loader] for loader in shares]
    assert {len(batches) for batches in numbers} == {rounds}
    assert sorted(number for batches in numbers for batch in batches for number in batch) == list(range(size))
