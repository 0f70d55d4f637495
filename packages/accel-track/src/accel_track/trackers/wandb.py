"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import plain


@final
class WandbTracker(ClientTracker):
    """Records a run of the project; other arguments go to `wandb.init`."""

    name = "wandb"
    takes = (object,)

    def start(self) -> None:
        """Begins a run."""
        self._run = self.client.init(**{"project": self._project, **self._kwargs})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Adds the values to the configuration of the run."""
        self._run.config.update(plain(values), allow_val_change=True)

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        self._run.log(values, step=step, **kwargs)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        self._write({name: [self.client.Image(image, **kwargs) for image in images]}, step)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._write({name: self.client.Table(columns=columns, data=rows, **kwargs)}, step)

    def finish(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()

    def state_dict(self) -> dict[str, Any]:
        """The id of the run."""
        return {"run": self._run.id, "next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on in the run: in one more file of it offline; the service leaves out steps that it has."""
        self.finish()
        self._next_step = state["next_step"]
        self._kwargs |= {"id": state["run"], "resume": "allow"}
        self.start()


TRACKER = WandbTracker
