"""Event files, read back by TensorBoard's own reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from accel_track.trackers.tensorboard import TensorBoardTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder: Path) -> Any:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    reader.Reload()
    return reader


def test_what_was_logged_is_read_back(tmp_path: Path) -> None:
    """S137: metrics, texts, images, a table, the configuration."""
    tracker = TensorBoardTracker("project", tmp_path)
    assert tracker.missing() is None
    tracker.start()
    tracker.store_init_configuration({"lr": 0.1, "model": {"layers": 2}, "list": [1, 2]})
    for step in range(100):
        tracker.log({"loss": 1 / (step + 1), "deep": {"rate": np.float32(step)}, "nan": float("nan")}, step=step)
    tracker.log({"note": "good"}, step=100)
    tracker.log_images({"image": [np.zeros((4, 5, 3)), np.ones((4, 5, 3))]}, step=100)
    tracker.log_table("table", ["a|b", "c"], [[1, 2]], step=100)
    tracker.finish()
    reader = read(tmp_path / "project")
    assert set(reader.Tags()["scalars"]) == {"loss", "deep/rate", "nan"}
    assert [event.step for event in reader.Scalars("loss")] == list(range(100))
    assert [event.value for event in reader.Scalars("loss")] == pytest.approx([1 / (s + 1) for s in range(100)])
    assert [event.value for event in reader.Scalars("deep/rate")] == list(range(100))
    assert (reader.Images("image")[0].width, reader.Images("image")[0].height) == (10, 4), "side by side"
    assert b"| a/b | c |" in reader.Tensors("table/text_summary")[0].tensor_proto.string_val[0]
    assert "model/layers: 2" in (tmp_path / "project" / "hparams.yml").read_text()


def test_what_it_cannot_take_is_an_error_and_the_rest_is_kept(tmp_path: Path) -> None:
    tracker = TensorBoardTracker("project", tmp_path)
    tracker.start()
    with pytest.raises(TypeError, match=r"list \(list\) was left out"):
        tracker.log({"list": [1, 2], "loss": 3.0})
    tracker.finish()
    assert [event.value for event in read(tmp_path / "project").Scalars("loss")] == [3.0]


def test_a_run_that_is_gone_on_with_has_each_step_once(tmp_path: Path) -> None:
    """S137."""
    tracker = TensorBoardTracker("project", tmp_path)
    tracker.start()
    for step in range(5):
        tracker.log({"loss": float(step)}, step=step)
    state = tracker.state_dict()
    for step in range(5, 9):
        tracker.log({"loss": -1.0}, step=step)
    tracker.finish()
    again = TensorBoardTracker("project", tmp_path)
    again.resume(state)
    for step in range(5, 12):
        again.log({"loss": float(step)}, step=step)
    again.finish()
    events = read(tmp_path / "project").Scalars("loss")
    assert [(event.step, event.value) for event in events] == [(step, float(step)) for step in range(12)]
    with pytest.raises(LookupError, match="no event files"):
        TensorBoardTracker("other", tmp_path).resume(state)


def test_two_processes_record_once(record_on_two: Callable[[str], Path], expected: dict[str, list[float]]) -> None:
    """S137."""
    reader = read(record_on_two("tensorboard") / "logs" / "project")
    for name, values in expected.items():
        assert [event.step for event in reader.Scalars(name)] == list(range(100))
        assert [event.value for event in reader.Scalars(name)] == pytest.approx(values)
