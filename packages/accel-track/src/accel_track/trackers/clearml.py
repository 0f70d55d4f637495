"""A tracker for ClearML."""

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import to_json


@final
class ClearmlTracker(ClientTracker):
    """A task of the project in ClearML. Its other arguments go to `clearml.Task.init`."""

    name = "clearml"
    ends_by = "close"
    #: what programs for Accelerate call it
    task = ClientTracker.tracker

    def start(self) -> None:
        """Begin a task with the name "run", unless `task_name` gives another."""
        named = {"project_name": self._project, "task_name": "run", **self._kwargs}
        self._run = self.client.Task.init(**named)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record values as the configuration."""
        self._run.connect_configuration(to_json(values))

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        for path, value in values.items():
            title, _, series = path.rpartition("/")
            self._run.get_logger().report_scalar(title or series, series, value, step, **kwargs)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        for index, image in enumerate(images):
            self._run.get_logger().report_image(name, f"{name}-{index}", step, image=image, **kwargs)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._run.get_logger().report_table(name, name, step, table_plot=[columns, *rows], **kwargs)


TRACKER = ClearmlTracker
