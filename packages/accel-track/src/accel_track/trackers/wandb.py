"""A tracker for Weights & Biases."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from accel_track.wandb_interface import WandbInterface


@final
class WandbTracker(WandbInterface):
    """A run of the project in Weights & Biases. Its other arguments go to `wandb.init`."""

    name = "wandb"
    update_kwargs: ClassVar[Mapping[str, Any]] = {"allow_val_change": True}

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        self._write({name: self.client.Table(columns=columns, data=rows, **kwargs)}, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the run, and the next step."""
        return {"run": self._run.id, "next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume the run. Offline it gets another file. The service leaves out the steps that it has."""
        self._reopen(state, id=state["run"], resume="allow")


TRACKER = WandbTracker
