"""The base class of trackers whose clients have the calls of wandb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from accel_track.client_tracker import ClientTracker
from accel_track.values import to_json


class WandbInterface(ClientTracker):
    """A tracker whose client has the calls of wandb. Its arguments go to the client's `init`."""

    takes = (object,)
    #: what programs for Accelerate call it
    run = ClientTracker.tracker
    #: arguments for an update of the configuration
    update_kwargs: ClassVar[Mapping[str, Any]] = {}

    def start(self) -> None:
        """Begin a run."""
        self._run = self.client.init(**{"project": self._project, **self._kwargs})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Add values to the configuration of the run."""
        self._run.config.update(to_json(values), **self.update_kwargs)

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self._run.log(values, step=step, **kwargs)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        self._write({name: [self.client.Image(image, **kwargs) for image in images]}, step)
