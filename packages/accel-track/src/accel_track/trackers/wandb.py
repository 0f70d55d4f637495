"""Weights & Biases."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from accel_track.wandb_interface import WandbInterface


@final
class WandbTracker(WandbInterface):
    """Records a run of the project; other arguments go to `wandb.init`."""

    name = "wandb"
    update_kwargs: ClassVar[Mapping[str, Any]] = {"allow_val_change": True}

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._write({name: self.client.Table(columns=columns, data=rows, **kwargs)}, step)

    def state_dict(self) -> dict[str, Any]:
        """The id of the run."""
        return {"run": self._run.id, "next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on in the run: in one more file of it offline; the service leaves out steps that it has."""
        self._reopen(state, id=state["run"], resume="allow")


TRACKER = WandbTracker
