"""The logs of processes tell which steps were committed, and what a fault has cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accel_chaos.history import History, Step, add_costs


def states(step: int) -> dict[str, str]:
    return {"weights": str(step), "optimizer state": str(step)}


def attempt(
    folder: Path, number: int, base: int, steps: int, *, at: float, ended: bool = False, world: int = 1
) -> None:
    """Writes the log of an attempt, whose step k makes weights k + 1 and takes a second."""
    name = f"000-{number:03}"
    begun: dict[str, Any] = {"base": base, "known": True, "states": states(base)}
    lines: list[tuple[str, dict[str, Any]]] = [("begin", begun)]
    for step in range(base, base + steps):
        made = Step("", 0, step, at + step - base, [f"sample {step}"], states(step), str(step + 1), world)
        lines.append(("step", asdict(made)))
    lines += [("end", {"states": states(base + steps)})] if ended else []
    path = folder / f"{name}-0.jsonl"
    folder.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps([event, {**line, "attempt": name, "rank": 0}]) + "\n" for event, line in lines))


def fault(number: int, after: int, time: float, **named: Any) -> dict[str, Any]:
    about = {"number": number, "kind": "SIGKILL", "phase": "forward", "rank": 0, "step": 0}
    return {**about, "attempt": f"000-{after:03}", "time": time, **named}


def test_steps_that_were_made_again_replace_the_others(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 7, at=100.0)
    attempt(tmp_path, 1, 5, 3, at=120.0, ended=True)
    history = History(tmp_path)
    assert [step.after for step in history.steps] == list("12345678")
    assert [step.time for step in history.steps] == [100, 101, 102, 103, 104, 120, 121, 122]
    assert history.ended == states(8)
    assert history.samples() == {f"sample {step}": 1 for step in range(8)}


def test_a_fault_costs_the_steps_and_the_seconds_until_the_next(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 7, at=100.0)
    attempt(tmp_path, 1, 5, 3, at=120.0, ended=True)
    told = [fault(1, 0, 106.5)]
    add_costs(History(tmp_path).attempts, told)
    assert (told[0]["seconds_to_next_step"], told[0]["steps_repeated"]) == (13.5, 2)


def test_a_fault_that_the_process_outlives_repeats_nothing(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 8, at=100.0, ended=True)
    told = [fault(1, 0, 103.5, kind="SIGSTOP")]
    add_costs(History(tmp_path).attempts, told)
    assert (told[0]["seconds_to_next_step"], told[0]["steps_repeated"]) == (0.5, 0)


def test_a_fault_without_a_next_step_has_no_time(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 8, at=100.0)
    told = [fault(1, 0, 107.5)]
    add_costs(History(tmp_path).attempts, told)
    assert told[0]["seconds_to_next_step"] is None


def test_weights_tell_at_which_step_an_attempt_begins(tmp_path: Path) -> None:
    attempt(tmp_path / "undisturbed", 0, 0, 8, at=100.0, ended=True)
    attempt(tmp_path / "disturbed", 0, 0, 3, at=200.0)
    undisturbed, earlier = (History(tmp_path / run) for run in ("undisturbed", "disturbed"))
    assert [earlier.find(states(step)) for step in (0, 2, 3, 4)] == [0, 2, 3, -1]
    assert [undisturbed.find(states(step)) for step in (0, 8, 99)] == [0, 8, -1]


def test_the_optimizer_tells_steps_with_equal_weights_apart(tmp_path: Path) -> None:
    """As a learning rate of 0 leaves them, at the start of a warmup."""
    attempt(tmp_path, 0, 0, 3, at=100.0)
    earlier = History(tmp_path)
    earlier.steps[1].states["weights"] = "0"
    assert [earlier.find({"weights": "0", "optimizer state": str(step)}) for step in (0, 1)] == [0, 1]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 2, at=100.0)
    path = tmp_path / "000-000-0.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert len(History(tmp_path).steps) == 1


def test_samples_of_all_ranks_count_where_the_job_has_committed_them(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 3, at=100.0)
    attempt(tmp_path, 1, 2, 1, at=120.0)
    for log in sorted(tmp_path.glob("*-0.jsonl")):
        other = log.read_text().replace("sample ", "other ").replace('"rank": 0', '"rank": 1')
        log.with_name(log.name.replace("-0.jsonl", "-1.jsonl")).write_text(other)
    samples = History(tmp_path).samples()
    assert samples == {f"{of} {step}": 1 for of in ("sample", "other") for step in range(3)}


def test_a_resized_run_tells_after_which_steps(tmp_path: Path) -> None:
    attempt(tmp_path, 0, 0, 7, at=100.0, world=2)
    attempt(tmp_path, 1, 5, 3, at=120.0)
    attempt(tmp_path, 2, 8, 1, at=140.0)
    attempt(tmp_path, 3, 9, 1, at=160.0, world=2)
    assert History(tmp_path).resizes == [5, 9]


def test_steps_of_another_size_that_were_made_again_were_not_resized(tmp_path: Path) -> None:
    """The checkpoint of a stop found no room, so others made the steps before it again."""
    attempt(tmp_path, 0, 0, 7, at=100.0, world=2)
    attempt(tmp_path, 1, 7, 1, at=120.0)
    attempt(tmp_path, 2, 6, 3, at=140.0, world=2)
    assert History(tmp_path).resizes == []
