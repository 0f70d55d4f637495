"""What scripts for Accelerate expect of trackers."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accel import Accelerator, ProjectConfiguration
from accel.tracking import GeneralTracker, LoggerType, on_main_process
from accel_state import is_initialized, release
from accel_testing import MakePool
from accel_track.local.lines import entries
from logged_lines import lines


@pytest.fixture(autouse=True)
def _released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    release()


class Remembers(GeneralTracker):
    name = "remembers"
    requires_logging_directory = False

    def __init__(self, *, name: str = "remembers") -> None:
        super().__init__()
        self.name = name
        self.calls: list[Any] = []

    @property
    def tracker(self) -> list[Any]:
        return self.calls

    @on_main_process
    def start(self) -> None:
        self.calls.append("start")

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        self.calls.append(("config", values))

    @on_main_process
    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        self.calls.append(("log", values, step, kwargs))

    @on_main_process
    def finish(self) -> None:
        self.calls.append("finish")


def test_a_tracker_of_ones_own_gets_what_the_script_logs() -> None:
    """S131: several trackers at once, each with its own arguments."""
    own, other = Remembers(), Remembers(name="other")
    assert not is_initialized()
    accelerator = Accelerator(cpu=True, log_with=[own, other])
    assert own.calls == []
    accelerator.init_trackers("project", config={"lr": 0.1})
    accelerator.log({"loss": torch.tensor(0.5)}, step=1, log_kwargs={"remembers": {"commit": True}})
    assert accelerator.get_tracker("remembers", unwrap=True) is own.calls
    assert accelerator.get_tracker("other") is other
    accelerator.end_training()
    assert own.calls == ["start", ("config", {"lr": 0.1}), ("log", {"loss": 0.5}, 1, {"commit": True}), "finish"]
    assert other.calls[2] == ("log", {"loss": 0.5}, 1, {})
    assert accelerator.trackers == []


def test_values_are_those_of_the_call(tmp_path: Path) -> None:
    """S133: whatever the loop does to them later."""
    accelerator = Accelerator(cpu=True, log_with=LoggerType.LOCAL, project_dir=tmp_path)
    accelerator.init_trackers("project")
    total, many, array = torch.tensor(1.0), torch.ones(3), np.ones(2)
    values: dict[str, Any] = {"total": total, "deep": {"many": many}, "array": array, "number": np.float32(2)}
    accelerator.log(values, step=0)
    total += 1
    many += 1
    array += 1
    values["number"] = 7
    accelerator.log(values | {"bf16": torch.tensor([0.5], dtype=torch.bfloat16, requires_grad=True)}, step=1)
    accelerator.end_training()
    before, after = (line["metrics"] for line in lines(tmp_path))
    assert before == {"total": 1.0, "deep/many": [1.0, 1.0, 1.0], "array": [1.0, 1.0], "number": 2.0}
    assert after == {"total": 2.0, "deep/many": [2.0] * 3, "array": [2.0, 2.0], "number": 7, "bf16": 0.5}


def test_without_a_folder_the_record_is_in_runs(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="local")
    accelerator.init_trackers("project", {"lr": 1}, {"local": {}})
    accelerator.log_table("table", columns=["a"], data=[[torch.tensor(1)]], step=0)
    accelerator.log_images({"image": [torch.rand(2, 2, 3)]}, step=0)
    folder = accelerator.get_tracker("local", unwrap=True).folder
    accelerator.end_training()
    assert folder.parent == tmp_path / "runs" / "project"
    table, image = entries(folder / "media.jsonl")
    assert table["rows"] == [[1]]
    assert (folder / "images" / image["images"]["image"][0]).exists()


def test_a_client_that_is_absent_is_an_error_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out, with a warning, in programs for Accelerate, which goes on without it."""
    monkeypatch.setattr("accel_track.client_tracker.find_spec", lambda name: None)
    words = "log_with='tensorboard' needs a package that is not installed: pip install tensorboard"
    with pytest.raises(ImportError, match=f"{words}$"):
        Accelerator(cpu=True, log_with=["tensorboard", "local"], project_dir=tmp_path)
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    accelerator = Accelerator(cpu=True, log_with=["tensorboard", "local"], project_dir=tmp_path)
    assert accelerator.log_with == ["local"]
    assert f"{words}; nothing is recorded by it" in caplog.text


def test_all_that_stands_against_trackers_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"log_with='tensorbord': expected all, .*local") as caught:
        Accelerator(cpu=True, log_with=["tensorbord", Remembers, Remembers(), Remembers()])  # type: ignore[list-item]
    assert "call it: Remembers(...)" in str(caught.value)
    assert "two trackers of the name remembers" in str(caught.value)
    accelerator = Accelerator(cpu=True, log_with="all", project_dir=tmp_path)
    assert "local" in accelerator.log_with
    with pytest.raises(ValueError, match="no such tracker was started; there are: none; call init_trackers first"):
        accelerator.get_tracker("local")


def test_a_folder_that_cannot_be_written_is_an_error_of_init_trackers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    own = Remembers()
    accelerator = Accelerator(
        cpu=True, log_with=[own, "local"], project_config=ProjectConfiguration(logging_dir=tmp_path / "file")
    )
    with pytest.raises(OSError, match="file"):
        accelerator.init_trackers("project")
    assert own.calls == ["start", "finish"]
    accelerator.log({"loss": 1})


def test_without_trackers_nothing_is_recorded(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.init_trackers("project", {"lr": 1})
    accelerator.log({"loss": 1}, step=1)
    accelerator.end_training()
    assert list(tmp_path.iterdir()) == []


class Everywhere(Remembers):
    main_process_only = False


def on_two(folder: Path) -> tuple[list[Any], list[Any], int, Any]:
    everywhere, main = Everywhere(name="everywhere"), Remembers()
    accelerator = Accelerator(cpu=True, log_with=[everywhere, main, "local"], project_dir=folder)
    accelerator.init_trackers("project")
    accelerator.log({"rank": accelerator.process_index})
    started = len(accelerator.trackers)
    kind = type(accelerator.get_tracker("local")).__name__
    accelerator.end_training()
    return everywhere.calls, main.calls, started, kind


def test_other_processes_record_nothing_unless_a_tracker_wants_them_to(world: MakePool, tmp_path: Path) -> None:
    """S131."""
    first, second = world(2).run(on_two, tmp_path)
    whole: Any = ["start", ("log", {"rank": 0}, None, {}), "finish"]
    assert first == (whole, whole, 3, "LocalTracker")
    assert second == (["start", ("log", {"rank": 1}, None, {}), "finish"], [], 1, "GeneralTracker")
    (line,) = lines(tmp_path)
    assert line["metrics"] == {"rank": 0}
    (story,) = tmp_path.glob("*/*/run.json")
    assert json.loads(story.read_text())["world"] == 2


class Slow(Remembers):
    in_thread = False


def test_a_tracker_may_ask_for_the_thread_that_trains() -> None:
    accelerator = Accelerator(cpu=True, log_with=[slow := Slow()])
    accelerator.init_trackers("project")
    accelerator.log({"loss": torch.tensor(2.0)})
    assert slow.calls[-1] == ("log", {"loss": 2.0}, None, {})
    accelerator.end_training()


class Breaks(Remembers):
    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        raise ConnectionError("no network")


def test_what_a_tracker_has_lost_is_told_at_the_end(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """S133."""
    accelerator = Accelerator(cpu=True, log_with=[Breaks(), "local"], project_dir=tmp_path)
    accelerator.init_trackers("project")
    with caplog.at_level(logging.WARNING, "accel"):
        for step in range(5):
            accelerator.log({"loss": 1.0}, step=step)
        accelerator.end_training()
    assert [message for message in caplog.messages if "remembers" in message] == [
        "the tracker remembers failed in log, and training goes on without what was lost: ConnectionError: no network",
        "the tracker remembers has lost 5 calls, or parts of them",
    ]
    assert len(lines(tmp_path)) == 5
