"""No call to a tracker is lost without a word, and none ends the training."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.tracking import GeneralTracker
from accel_state import release
from accel_track.local.lines import entries
from logged_lines import lines


@pytest.fixture(autouse=True)
def _released() -> Any:
    yield
    release()


class Exits(GeneralTracker):
    name = "exits"
    requires_logging_directory = False
    tracker: Any = property(lambda self: self)
    error: BaseException = SystemExit(3)

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
def test_a_tracker_that_exits_is_told_and_counted(
    error: BaseException, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Exits()
    tracker.error = error
    accelerator = Accelerator(cpu=True, log_with=[tracker, "local"], project_dir=tmp_path)
    accelerator.init_trackers("project")
    with caplog.at_level(logging.WARNING, "accel"):
        for step in range(3):
            accelerator.log({"loss": 1.0}, step=step)
            accelerator.get_tracker("local")
        accelerator.end_training()
    told = [message for message in caplog.messages if "exits" in message]
    assert told[0].startswith("the tracker exits failed in log, and training goes on without what was lost: ")
    assert type(error).__name__ in told[0]
    assert told[1:] == ["the tracker exits has lost 3 calls, or parts of them"]
    assert len(lines(tmp_path)) == 3


class ExitsInTraining(Exits):
    in_thread = False


def test_an_exit_on_the_training_thread_ends_the_program(tmp_path: Path) -> None:
    """It may be of a handler of a signal."""
    accelerator = Accelerator(cpu=True, log_with=[ExitsInTraining()])
    accelerator.init_trackers("project")
    with pytest.raises(SystemExit):
        accelerator.log({"loss": 1.0})
    accelerator.end_training()


def test_a_log_without_trackers_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.log({"loss": 1.0})
        accelerator.log_table("table", ["a"], [[1]])
        accelerator.init_trackers("project")
        accelerator.log({"loss": 1.0}, step=0)
        accelerator.end_training()
        for step in range(1, 3):
            accelerator.log({"loss": 1.0}, step=step)
        accelerator.end_training()
    assert caplog.messages == [
        "log: nothing is recorded, as init_trackers was not called",
        "log: nothing is recorded, as end_training has ended the trackers; call it after the last log, or"
        " init_trackers again",
    ]
    assert [line["step"] for line in lines(tmp_path)] == [0]


def test_a_script_that_asked_for_no_tracker_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    accelerator = Accelerator(cpu=True)
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.log({"loss": 1.0})
        accelerator.end_training()
        accelerator.log({"loss": 1.0})
    assert caplog.messages == []


def test_a_value_that_holds_itself_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    accelerator.init_trackers("project")
    own: dict[str, Any] = {"a": 1}
    own["own"] = own
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    with caplog.at_level(logging.WARNING, "accel"):
        for step in range(2):
            accelerator.log({"itself": own, "loss": torch.tensor(0.5)}, step=step)
        accelerator.log_table("table", ["a"], [[1], deep], step=2)
        accelerator.end_training()
    assert [line["metrics"] for line in lines(tmp_path)] == [{"itself": None, "loss": 0.5}] * 2
    assert [message for message in caplog.messages if "holds itself" in message] == [
        f"log: {name} holds itself, or is nested too deeply, and is recorded as None" for name in ("itself", "data")
    ]


def test_a_run_whose_record_was_damaged_goes_on_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a power loss leaves it: NULs in the place of a line."""

    def begin() -> Accelerator:
        accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
        accelerator.prepare(torch.nn.Linear(1, 1))
        return accelerator

    accelerator = begin()
    accelerator.init_trackers("project", {"lr": 0.1})
    for step in range(5):
        accelerator.log({"loss": step}, step=step)
        if step == 2:
            accelerator.save_state(tmp_path / "checkpoints" / "checkpoint_0")
    run: Path = accelerator.get_tracker("local", unwrap=True).folder
    accelerator.end_training()
    release()
    path = run / "metrics.jsonl"
    first, second, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(first + b"\n" + b"\0" * len(second) + b"\n" + rest + b"\0" * 4096)
    accelerator = begin()
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.resume()
        accelerator.init_trackers("project", {"lr": 0.1})
    assert f"{path} is damaged: 2 of its lines cannot be read, and are kept in metrics.jsonl.damaged-1" in caplog.text
    for step in range(3, 6):
        accelerator.log({"loss": step}, step=step)
    accelerator.end_training()
    assert [entry["step"] for entry in entries(path)] == [0, 2, 3, 4, 5]
