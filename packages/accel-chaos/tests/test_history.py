"""The logs of processes tell which steps were committed, and what a fault has cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accel_chaos.history import History, Step, add_costs, committed, find_base, read_attempts


def states(step: int) -> dict[str, str]:
    return {"weights": str(step), "optimizer state": str(step)}


def attempt(folder: Path, number: int, base: int | None, steps: int, *, at: float, ended: bool = False) -> None:
    """Writes the log of an attempt, whose step k makes weights k + 1 and takes a second."""
    first = base or 0
    lines: list[dict[str, Any]] = [{"event": "begin", "world": 1, "base": base, "states": states(first)}]
    for step in range(first, first + steps):
        made = Step(
            at + step - first,
            [f"sample {step}"],
            [0.5],
            [0.1],
            {"weights": str(step), "optimizer state": str(step)},
            str(step + 1),
        )
        lines.append({"event": "step", **asdict(made)})
    lines += [{"event": "end", "states": states(first + steps)}] if ended else []
    path = folder / f"000-{number:03}" / "rank-0.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def fault(number: int, after: int, time: float, **named: Any) -> dict[str, Any]:
    about = {"number": number, "kind": "SIGKILL", "phase": "forward", "rank": 0, "step": 0}
    return {**about, "attempt": f"000-{after:03}", "time": time, **named}


def test_steps_that_were_made_again_replace_the_others(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 7, at=100.0)
    attempt(tmp_path, 1, 5, 3, at=120.0, ended=True)
    history = History(tmp_path)
    assert [step[0].after for step in history.steps] == list("12345678")
    assert [one.name for one, _ in committed(history.attempts)] == ["000-000"] * 5 + ["000-001"] * 3
    assert history.ended == states(8)
    assert history.samples() == {f"sample {step}": 1 for step in range(8)}


def test_a_fault_costs_the_steps_and_the_seconds_until_the_next(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 7, at=100.0)
    attempt(tmp_path, 1, 5, 3, at=120.0, ended=True)
    told = [fault(1, 0, 106.5)]
    add_costs(History(tmp_path), told)
    assert (told[0]["seconds_to_next_step"], told[0]["steps_repeated"]) == (13.5, 2)


def test_a_fault_that_the_process_outlives_repeats_nothing(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 8, at=100.0, ended=True)
    told = [fault(1, 0, 103.5, kind="SIGSTOP")]
    add_costs(History(tmp_path), told)
    assert (told[0]["seconds_to_next_step"], told[0]["steps_repeated"]) == (0.5, 0)


def test_a_fault_without_a_next_step_has_no_time(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 8, at=100.0)
    told = [fault(1, 0, 107.5)]
    add_costs(History(tmp_path), told)
    assert told[0]["seconds_to_next_step"] is None


def test_weights_tell_at_which_step_an_attempt_begins(tmp_path: Path) -> None:
    attempt(tmp_path / "undisturbed", 0, 0, 8, at=100.0, ended=True)
    attempt(tmp_path / "disturbed", 0, 0, 3, at=200.0)
    undisturbed, earlier = (read_attempts(tmp_path / run) for run in ("undisturbed", "disturbed"))
    assert [find_base(states(step), earlier, undisturbed) for step in (0, 2, 3, 7, 8)] == [0, 2, 3, 7, 8]
    assert find_base(states(99), earlier, undisturbed) is None


def test_the_optimizer_tells_steps_with_equal_weights_apart(tmp_path: Path) -> None:
    """As a learning rate of 0 leaves them, at the start of a warmup."""
    attempt(tmp_path, 0, 0, 3, at=100.0)
    earlier = read_attempts(tmp_path)
    earlier[0].steps[0].after = "0"
    assert [find_base({"weights": "0", "optimizer state": str(step)}, earlier) for step in (0, 1)] == [0, 1]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 2, at=100.0)
    path = tmp_path / "000-000" / "rank-0.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert len(committed(read_attempts(tmp_path))) == 1
