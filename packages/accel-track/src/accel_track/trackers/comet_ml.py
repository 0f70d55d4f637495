"""A tracker for Comet."""

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import flatten, to_json


@final
class CometTracker(ClientTracker):
    """An experiment of the project in Comet. Its other arguments go to `comet_ml.start`."""

    name = "comet_ml"
    takes = (int, float, str)
    ends_by = "end"
    #: what programs for Accelerate call it
    writer = ClientTracker.tracker

    def start(self) -> None:
        """Begin an experiment."""
        self._run = self.client.start(**{"project_name": self._project, **self._kwargs})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record values as parameters."""
        self._run.log_parameters(dict(flatten(to_json(values))))

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        self._run.log_metrics({name: values[name] for name in values if name not in texts}, step=step, **kwargs)
        self._run.log_others(texts)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        for index, image in enumerate(images):
            self._run.log_image(image, name=f"{name}-{index}", step=step, **kwargs)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._run.log_table(f"{name}-{step}.csv", rows, headers=columns, **kwargs)


TRACKER = CometTracker
