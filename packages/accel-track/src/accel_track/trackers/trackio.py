"""A tracker for Trackio."""

from typing import Any, final

from accel_track.wandb_interface import WandbInterface


@final
class TrackioTracker(WandbInterface):
    """A run of the project in Trackio. Its other arguments go to `trackio.init`."""

    name = "trackio"

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        for index, image in enumerate(images):
            self._write({f"{name}/{index}": self.client.Image(image, **kwargs)}, step)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._write({name: self.client.Table(columns=columns, data=rows)}, step, **kwargs)


TRACKER = TrackioTracker
