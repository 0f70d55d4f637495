"""Comet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import flat, plain


@final
class CometTracker(ClientTracker):
    """Records an experiment of the project; other arguments go to `comet_ml.start`."""

    name = "comet_ml"
    takes = (int, float, str)

    def start(self) -> None:
        """Begins an experiment."""
        self._run = self.client.start(**{"project_name": self._project, **self._kwargs})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Records the values as parameters."""
        self._run.log_parameters(dict(flat(plain(values))))

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        if numbers := {name: value for name, value in values.items() if name not in texts}:
            self._run.log_metrics(numbers, step=step, **kwargs)
        for name, text in texts.items():
            self._run.log_other(name, text)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        for place, image in enumerate(images):
            self._run.log_image(image, name=f"{name}-{place}", step=step, **kwargs)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._run.log_table(f"{name}-{step}.csv", rows, headers=columns, **kwargs)

    def finish(self) -> None:
        """Ends the experiment."""
        if self._run is not None:
            self._run.end()


TRACKER = CometTracker
