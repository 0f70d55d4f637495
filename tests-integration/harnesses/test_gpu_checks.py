"""The harness of the GPU checks: a check that fails, hangs or dies is told, and stops no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_checks import __main__ as command
from gpu_checks import processes, report
from gpu_checks.check import Check, Findings, Outcome, Setup, Skipped, Status, outcome_of
from gpu_checks.checks import CHECKS
from gpu_checks.measure import interleaved
from gpu_checks.ranks import on_ranks
from rank_jobs import dies, fails_on_rank_1, rank

REHEARSAL = Setup(rehearsal=True)


def mixed(setup: Setup, findings: Findings) -> None:
    findings.facts["seen"] = 3
    with findings.part("first"):
        raise ValueError("no such thing")
    with findings.part("second"):
        setup.need_cuda()
    with findings.part("third"):
        pass


def absent(setup: Setup, findings: Findings) -> None:
    raise Skipped("nothing to do")


def test_a_part_that_fails_is_told_and_stops_no_other() -> None:
    outcome = outcome_of(Check("mixed", 10, mixed), REHEARSAL)
    assert outcome.status is Status.FAILED
    assert outcome.reason.startswith("first: ValueError: no such thing")
    assert {name: outcome.facts[name] for name in ("seen", "first", "third")} == {
        "seen": 3,
        "first": "failed",
        "third": "ok",
    }
    assert str(outcome.facts["second"]).startswith("skipped: needs CUDA")


def test_a_check_that_cannot_run_is_skipped_with_its_reason() -> None:
    outcome = outcome_of(Check("absent", 10, absent), REHEARSAL)
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "nothing to do")
    assert Outcome.from_json(outcome.as_json()) == outcome


def test_a_check_runs_in_a_process_of_its_own() -> None:
    (environment,) = (check for check in CHECKS if check.name == "environment")
    outcome = processes.run_check(environment, REHEARSAL, 60)
    assert (outcome.status, outcome.facts["device"]) == (Status.OK, "cpu")
    assert outcome.facts["GPU"] == "skipped: needs CUDA, and this is a rehearsal on the CPU"


def test_a_check_that_hangs_or_dies_has_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stands_in = tmp_path / "python"
    monkeypatch.setattr("sys.executable", str(stands_in))
    for script, words in {"exec sleep 60": "not over after 1 s", "echo bye; exit 7": "ended with code 7\nbye"}.items():
        stands_in.write_text(f"#!/bin/sh\n{script}\n")
        stands_in.chmod(0o755)
        outcome = processes.run_check(Check("any", 10, absent), REHEARSAL, 1.0)
        assert outcome.status is Status.FAILED
        assert words in outcome.reason
    assert processes.run_check(Check("any", 10, absent), REHEARSAL, 0.0).reason == processes.OUT_OF_TIME


def test_what_a_check_has_seen_outlives_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stands_in = tmp_path / "python"
    kept = Outcome("any", Status.FAILED, "first: ValueError: no such thing", {"seen": 3}).as_json()
    stands_in.write_text(
        f"#!/bin/sh\nwhile [ $1 != --answer ]; do shift; done\necho '{kept}' > ${{2%.json}}.kept; exit 7\n"
    )
    stands_in.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(stands_in))
    outcome = processes.run_check(Check("any", 10, absent), REHEARSAL, 60)
    assert (outcome.status, outcome.facts) == (Status.FAILED, {"seen": 3})
    assert outcome.reason.splitlines() == ["the process ended with code 7", "first: ValueError: no such thing"]


def test_a_check_keeps_what_each_part_has_seen() -> None:
    kept = list[Outcome]()
    outcome_of(Check("mixed", 10, mixed), REHEARSAL, kept.append)
    assert [outcome.status for outcome in kept] == [Status.FAILED] * 3
    assert [list(outcome.facts)[-1] for outcome in kept] == ["third", "third", "third"]


def test_checks_beyond_the_budget_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = tuple(Check(name, 10, absent) for name in ("early", "late", "later"))
    monkeypatch.setattr(command, "CHECKS", checks)
    monkeypatch.setattr(command, "monotonic", iter((0.0, 1.0, 9.5, 12.0)).__next__)

    def ran(check: Check, setup: Setup, left_s: float) -> Outcome:
        return Outcome(check.name, *((Status.SKIPPED, processes.OUT_OF_TIME) if left_s < 1 else (Status.OK,)))

    monkeypatch.setattr(command, "run_check", ran)
    assert command.main(["--budget", "10"]) == 0
    assert "no time was left for late, later; run them by: --only late --only later" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statuses", "code"), [((Status.OK, Status.SKIPPED), 0), ((Status.OK, Status.FAILED, Status.OK), 1)]
)
def test_a_failed_check_makes_the_exit_code_1_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: tuple[Status, ...], code: int
) -> None:
    checks = tuple(Check(f"check {number}", 10, absent) for number in range(len(statuses)))
    answers = {check.name: status for check, status in zip(checks, statuses, strict=True)}
    monkeypatch.setattr(command, "CHECKS", checks)
    monkeypatch.setattr(
        command, "run_check", lambda check, setup, left_s: Outcome(check.name, answers[check.name], "a | b")
    )
    assert command.main(["--rehearse", "--out", str(tmp_path)]) == code
    stored = json.loads((tmp_path / "gpu_checks.json").read_text())
    assert [row["status"] for row in stored] == [status.value for status in statuses]
    assert len((tmp_path / "gpu_checks.md").read_text().splitlines()) == 2 + len(statuses)


def test_the_table_keeps_its_columns() -> None:
    outcome = Outcome("x", Status.FAILED, "a | b\nand more", {"GB": 4.03219, "part": "ok", "which": "c\nd"}, 1.25)
    lines = report.markdown([outcome]).splitlines()
    assert lines[2] == "| x | failed | 1 | a \\| b |"
    assert lines[6:] == ["| x | GB | 4.03 |", "| x | which | c d |"]  # and not what was only found to be right


def test_what_only_a_gpu_shows_comes_first() -> None:
    names = [check.name for check in CHECKS]
    told = [
        "sharded_steps",
        "no_synchronisation",
        "offload",
        "graph_capture",
        "compilation",
        "step_costs",
        "save_costs",
    ]
    assert names[:8] == ["environment", *told]
    assert len(set(names)) == len(names)
    assert processes.BUDGET_S < 540


@pytest.mark.parametrize("name", ["offload", "graph_capture", "save_costs"])
def test_a_measuring_check_runs_small_on_the_cpu(name: str) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    outcome = processes.run_check(check, REHEARSAL, 120)
    assert outcome.status is Status.OK, outcome.reason
    assert "failed" not in outcome.facts.values()


def test_steps_are_compared_round_by_round() -> None:
    calls = list[str]()
    cost = interleaved(REHEARSAL, {"one": lambda: calls.append("one"), "other": lambda: calls.append("other")})
    assert calls == ["one", "one", "other", "other", "one"]  # once to see how long it takes
    assert cost["one"].ratio == 1.0
    assert cost["one"].spread == 0.0


def test_ranks_answer_each_job_until_one_fails() -> None:
    answers = on_ranks([rank, fails_on_rank_1, rank])
    assert [answer.result for answer in answers["rank"]] == [0, 1]
    failures = [answer.failure for answer in answers["fails_on_rank_1"]]
    assert failures[0] is None
    assert failures[1] is not None
    assert failures[1].startswith("ValueError: not here")


def test_ranks_that_die_are_told() -> None:
    assert [answer.failure for answer in on_ranks([dies])["dies"]] == ["the process ended without an answer"] * 2
