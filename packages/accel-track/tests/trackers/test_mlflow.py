"""MLflow with a store in a file, read back by its own client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlflow", reason="mlflow is not installed: nox -s trackers")

from accel_track.trackers.mlflow import MlflowTracker

pytestmark = [
    pytest.mark.leaves("environment", "children", "threads"),
    pytest.mark.filterwarnings("ignore"),  # of MLflow, and of what it imports
]


def test_a_run_in_two_lives_is_read_back(
    offline: Path, write_steps: Callable[..., None], expected: dict[str, list[float]], config: dict[str, Any]
) -> None:
    """S137: metrics, configuration, an image, a table; steps after the checkpoint come again, and are there once."""
    tracker = MlflowTracker("project", offline / "logs", run_name="mine", tags={"kind": "test"})
    assert tracker.missing() is None
    tracker.start()
    tracker.store_init_configuration(config)
    write_steps(tracker, 0, 50)
    state = tracker.state_dict()
    write_steps(tracker, 50, 60)
    again = MlflowTracker("project", offline / "logs")
    again.start()
    again.resume(state)
    again.store_init_configuration(config)
    write_steps(again, 50)
    with pytest.raises(TypeError, match=r"note \(str\) was left out"):
        again.log({"note": "good"}, step=100)
    with pytest.raises(TypeError, match="'flag'"):
        again.log({"loss": 1.0}, step=100, flag=True)
    with pytest.raises(ValueError, match="longer are text"):
        again.store_init_configuration({"text": "a" * 6001})
    again.log_images({"image": [np.zeros((4, 4, 3), np.uint8)]}, step=100)
    again.log_table("table", ["a"], [[1]], step=100)
    again.finish()
    reader = again.client.MlflowClient(tracking_uri=f"sqlite:///{offline / 'logs' / 'mlflow.db'}")
    (experiment,) = [one for one in reader.search_experiments() if one.name == "project"]
    (run,) = reader.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name, run.data.tags["kind"]) == ("FINISHED", "mine", "test")
    assert run.data.params == {"lr": "0.1", "model/layers": "2"}
    for name, values in expected.items():
        points = sorted(reader.get_metric_history(run.info.run_id, name), key=lambda point: point.step)
        assert [(point.step, point.value) for point in points] == list(enumerate(values))
    assert {one.path for one in reader.list_artifacts(run.info.run_id)} == {"images", "table-100.json"}


def test_two_processes_record_once(record_on_two: Callable[[str], Path], expected: dict[str, list[float]]) -> None:
    """S137."""
    folder = record_on_two("mlflow")
    reader = MlflowTracker("project", folder).client.MlflowClient(f"sqlite:///{folder / 'logs' / 'mlflow.db'}")
    (run,) = reader.search_runs([reader.get_experiment_by_name("project").experiment_id])
    for name, values in expected.items():
        points = sorted(reader.get_metric_history(run.info.run_id, name), key=lambda point: point.step)
        assert [(point.step, point.value) for point in points] == list(enumerate(values))


def test_a_run_that_is_not_there_is_told(offline: Path) -> None:
    with pytest.raises(LookupError, match="MLflow has no run gone"):
        MlflowTracker("project", offline).resume({"run": "gone", "next_step": 1})
