"""A tracker for MLflow, by a client that does not depend on the thread."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import flatten, to_json

#: parameters that MLflow takes in one call, and the characters that it takes of a value
AT_ONCE, LONGEST = 100, 6000


@final
class MlflowTracker(ClientTracker):
    """A run of MLflow, of the experiment with the name of the project.

    Args:
        project: Name of the project.
        logging_dir: Folder for mlflow.db.
        tracking_uri: Where MLflow records. Default: as MLflow's settings say, or the file `logging_dir`/mlflow.db.
        kwargs: Arguments for `create_run`, such as `run_name` and `tags`.
    """

    name = "mlflow"
    requires_logging_directory = True
    default_logging_directory = "runs"

    def __init__(self, project: str, logging_dir: str | Path, /, *, tracking_uri: str | None = None, **kwargs: Any):
        super().__init__(project, logging_dir)
        self._kwargs = kwargs  # with a `run_name` of MLflow's own
        self._uri, self._id = tracking_uri, ""
        #: the last step of each metric that MLflow has from before the run was resumed
        self._had: dict[str, int] = {}

    @property
    def tracker(self) -> Any:
        """The run of MLflow, as it is now."""
        return self._run.get_run(self._id)

    #: what programs for Accelerate call it
    active_run = tracker

    def start(self) -> None:
        """Begin a run."""
        self._connect()
        found = self._run.get_experiment_by_name(self._project)
        experiment = found.experiment_id if found else self._run.create_experiment(self._project)
        self._id = self._run.create_run(experiment, **self._kwargs).info.run_id

    def _connect(self) -> None:
        if self._uri is None and not self.client.is_tracking_uri_set():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._uri = f"sqlite:///{self._folder / 'mlflow.db'}"
        self._run = self.client.MlflowClient(tracking_uri=self._uri)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the parameters that the run does not have yet.

        Raises:
            ValueError: Values are too long for MLflow; the message names them. The others were recorded.
        """
        known, texts = self.tracker.data.params, {name: str(value) for name, value in flatten(to_json(values))}
        long = [name for name, text in texts.items() if len(text) > LONGEST]
        new = [name for name in texts if name not in known and name not in long]
        params = [self.client.entities.Param(name, texts[name]) for name in new]
        for first in range(0, len(params), AT_ONCE):
            self._run.log_batch(self._id, params=params[first : first + AT_ONCE])
        if long:
            raise ValueError(
                f"MLflow takes values of {LONGEST} characters, and longer are {', '.join(long)}; shorten them"
            )

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        now, make = int(time.time() * 1000), self.client.entities.Metric
        fresh = [name for name in values if step > self._had.get(name, -1)]
        metrics = [make(name, float(values[name]), now, step) for name in fresh]
        self._run.log_batch(self._id, metrics=metrics, **kwargs)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        for index, image in enumerate(images):
            self._run.log_image(self._id, image, key=f"{name}-{index}", step=step, **kwargs)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        data = {head: [row[index] for row in rows] for index, head in enumerate(columns)}
        self._run.log_table(self._id, data, artifact_file=f"{name}-{step}.json", **kwargs)

    def finish(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.set_terminated(self._id)

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the run, and the next step."""
        return {"run": self._id, "next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume the run. MLflow removes no values, so that steps that it has are not recorded again.

        Raises:
            LookupError: There is no such run.
        """
        new = self._id
        self._connect()
        try:
            run = self._run.get_run(state["run"])
        except self.client.MlflowException as error:
            raise LookupError(f"MLflow has no run {state['run']}: {error}") from error
        if new and new != state["run"]:
            self._run.delete_run(new)
        self._id, self._next_step = state["run"], state["next_step"]
        self._run.update_run(self._id, status="RUNNING")
        for name in run.data.metrics:
            self._had[name] = max(point.step for point in self._run.get_metric_history(self._id, name))


TRACKER = MlflowTracker
