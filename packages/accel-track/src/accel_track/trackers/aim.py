"""A tracker for Aim."""

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import to_json


@final
class AimTracker(ClientTracker):
    """A run in the Aim repository `logging_dir`, of the experiment with the name of the project.

    Its other arguments go to `aim.Run`.
    """

    name = "aim"
    requires_logging_directory = True
    default_logging_directory = "runs"
    takes = (int, float, str)
    ends_by = "close"
    #: what programs for Accelerate call it
    writer = ClientTracker.tracker

    def start(self) -> None:
        """Begin a run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = self.client.Run(**{"repo": str(self._folder), "experiment": self._project, **self._kwargs})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record values as hyperparameters."""
        self._run["hparams"] = to_json(values)

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        for name, value in values.items():
            taken = self.client.Text(value) if isinstance(value, str) else value
            self._run.track(taken, name=name, step=step, **kwargs)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        self._run.track([self.client.Image(image) for image in images], name=name, step=step, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the hash of the run, and the next step."""
        return {"run": self._run.hash, "next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume the run. The values of a step that comes again replace the older values.

        Raises:
            LookupError: There is no such run.
        """
        if not (self._folder / ".aim" / "meta" / "chunks" / state["run"]).exists():
            raise LookupError(f"there is no run {state['run']} of Aim in {self._folder}")
        self._reopen(state, run_hash=state["run"])


TRACKER = AimTracker
