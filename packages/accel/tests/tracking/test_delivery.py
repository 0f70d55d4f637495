"""What reaches trackers that are slow, that fail, and in forked processes."""

import gc
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.tracking import GeneralTracker
from accel_testing import stretched
from logged_lines import lines


class Waits(GeneralTracker):
    name = "waits"
    requires_logging_directory = False
    tracker: Any = property(lambda self: self)

    def __init__(self) -> None:
        super().__init__()
        self.go_on, self.ended = threading.Event(), threading.Event()
        self.calls: list[Any] = []

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        self.go_on.wait(stretched(60))
        self.calls.append(step)

    def finish(self) -> None:
        self.calls.append("finish")
        self.ended.set()


def test_a_slow_tracker_keeps_nothing_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S133: its calls are told, and its run ends when it has them."""
    monkeypatch.setattr("accel.tracking.session.PATIENCE_S", 2.0)
    accelerator = Accelerator(cpu=True, log_with=["local", slow := Waits()], project_dir=tmp_path)
    accelerator.init_trackers("project")
    for step in range(4):
        accelerator.log({"loss": 1.0}, step=step)
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.end_training()
    assert "5 calls have not reached their trackers" in caplog.text
    assert slow.calls == []
    assert len(lines(tmp_path)) == 4
    slow.go_on.set()
    assert slow.ended.wait(stretched(20))
    assert slow.calls == [0, 1, 2, 3, "finish"]


def test_what_was_logged_by_an_accelerator_that_is_gone_is_recorded(tmp_path: Path) -> None:
    """S133."""

    def script() -> threading.Thread:
        accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
        accelerator.init_trackers("project")
        for step in range(100):
            accelerator.log({"loss": 1.0}, step=step)
        (pump,) = accelerator.tracking._pumps
        return pump._thread

    thread = script()
    gc.collect()
    until = threading.Event()
    for _ in range(100):
        if len(lines(tmp_path)) == 100:
            break
        until.wait(0.1)
    assert len(lines(tmp_path)) == 100
    assert thread.is_alive()


@pytest.mark.parametrize("log_kwargs", [{"local": None}, {"local": {1: 2}}, ["local"], [], {1: {}}])
def test_arguments_for_trackers_that_are_none_are_told_at_once(tmp_path: Path, log_kwargs: Any) -> None:
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    accelerator.init_trackers("project")
    with pytest.raises(TypeError, match="expected a dictionary of arguments for each tracker"):
        accelerator.log({"loss": 1.0}, log_kwargs=log_kwargs)
    with pytest.raises(TypeError, match="log_table"):
        accelerator.log_table("t", ["a"], [[1]], log_kwargs=log_kwargs)
    accelerator.log({"loss": 1.0}, log_kwargs={"local": {"method": 1, "tracker": 2}})
    accelerator.end_training()
    assert len(lines(tmp_path)) == 1


def test_the_step_is_that_of_the_call(tmp_path: Path) -> None:
    """S133."""
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    accelerator.init_trackers("project")
    step: Any = torch.tensor(0)
    for _ in range(3):
        accelerator.log({"loss": 1.0}, step=step)
        step += 1
    with pytest.raises(TypeError, match=r"log\(step=7.9\): expected a whole number"):
        accelerator.log({"loss": 1.0}, step=7.9)  # type: ignore[arg-type]
    accelerator.end_training()
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]


def test_a_value_that_cannot_be_read_is_lost_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    accelerator.init_trackers("project")
    for step in range(4):
        accelerator.log({"loss": torch.empty(1, device="meta") if step == 2 else 1.0}, step=step)
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.end_training()
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 3]
    assert "the tracker local has lost 1 calls, or parts of them" in caplog.text


class Here(Waits):
    name = "here"
    in_thread = False


def test_a_forked_process_neither_logs_nor_ends_the_run(tmp_path: Path) -> None:
    """S133."""
    accelerator = Accelerator(cpu=True, log_with=["local", own := Here()], project_dir=tmp_path)
    own.go_on.set()
    accelerator.init_trackers("project")
    if (child := os.fork()) == 0:
        accelerator.log({"loss": 1.0}, step=1)
        accelerator.end_training()
        os._exit(len(own.calls))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (story,) = tmp_path.glob("*/*/run.json")
    assert json.loads(story.read_text())["state"] == "running"
    accelerator.log({"loss": 1.0}, step=0)
    accelerator.end_training()
    assert own.calls == [0, "finish"]
    assert [line["step"] for line in lines(tmp_path)] == [0]
