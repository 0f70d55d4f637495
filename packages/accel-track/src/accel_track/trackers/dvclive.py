"""A tracker for DVCLive."""

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import to_json


@final
class DvcliveTracker(ClientTracker):
    """A run of DVCLive. Its arguments, such as the folder `dir`, go to `dvclive.Live`, and the project is not used."""

    name = "dvclive"
    takes = (int, float, str)
    ends_by = "end"
    #: what programs for Accelerate call it
    live = ClientTracker.tracker

    def start(self) -> None:
        """Open the folder."""
        self._run = self.client.Live(**self._kwargs)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write values as parameters."""
        self._run.log_params(to_json(values))

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self._run.step = step
        for name, value in values.items():
            self._run.log_metric(name, value, **kwargs)
        self._run.sync()

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        self._run.step = step
        for index, image in enumerate(images):
            self._run.log_image(f"{name}/{step}-{index}.png", image, **kwargs)


TRACKER = DvcliveTracker
