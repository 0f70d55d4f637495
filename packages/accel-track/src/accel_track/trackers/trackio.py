"""Trackio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import plain


@final
class TrackioTracker(ClientTracker):
    """Records a run of the project; other arguments go to `trackio.init`."""

    name = "trackio"
    takes = (object,)

    def start(self) -> None:
        """Begins a run."""
        self._run = self.client.init(self._project, **self._kwargs)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Adds the values to the configuration, which the run hands over when something is logged."""
        self._run.config.update(plain(values))

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self._run.log(values, step=step)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        for place, image in enumerate(images):
            self._write({f"{name}/{place}": self.client.Image(image, **kwargs)}, step)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._write({name: self.client.Table(columns=columns, data=rows)}, step)

    def finish(self) -> None:
        """Ends the run, when all of it is written."""
        if self._run is not None:
            self._run.finish()


TRACKER = TrackioTracker
