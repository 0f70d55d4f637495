"""SwanLab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import plain


@final
class SwanlabTracker(ClientTracker):
    """Records a run of the project; other arguments go to `swanlab.init`."""

    name = "swanlab"
    takes = (object,)

    def start(self) -> None:
        """Begins a run."""
        self._run = self.client.init(**{"project": self._project, **self._kwargs})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Adds the values to the configuration of the run."""
        self._run.config.update(plain(values))

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self._run.log(values, step=step)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        self._write({name: [self.client.Image(image, **kwargs) for image in images]}, step)

    def finish(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()


TRACKER = SwanlabTracker
