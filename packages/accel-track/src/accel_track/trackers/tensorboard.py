"""A tracker for TensorBoard, by torch's writer of event files."""

from collections.abc import Mapping
from typing import Any, final

from accel_track.client_tracker import ClientTracker
from accel_track.values import flatten, to_json


@final
class TensorBoardTracker(ClientTracker):
    """A writer of event files into the folder `logging_dir`/project. Its other arguments go to SummaryWriter."""

    name = "tensorboard"
    requires_logging_directory = True
    takes = (int, float, str)
    ends_by = "close"
    #: what programs for Accelerate call it
    writer = ClientTracker.tracker

    def start(self) -> None:
        """Open an event file."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self._run = SummaryWriter(str(self._folder / self._project), **self._kwargs)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Write values as hyperparameters, and as YAML."""
        settings = dict(flatten(to_json(values)))
        # TensorBoard takes numbers and texts only
        known = {name: value if isinstance(value, self.takes) else str(value) for name, value in settings.items()}
        self._run.add_hparams(known, metric_dict={}, run_name=".")
        lines = [f"{name}: {value!r}\n" for name, value in known.items()]
        (self._folder / self._project / "hparams.yml").write_text("".join(lines), encoding="utf-8")

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        for name, value in values.items():
            add = self._run.add_text if isinstance(value, str) else self._run.add_scalar
            add(name, value, global_step=step, **kwargs)
        self._run.flush()

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        import numpy as np

        together = np.stack([np.asarray(image.convert("RGB")) for image in images])
        self._run.add_images(name, together, global_step=step, dataformats="NHWC", **kwargs)
        self._run.flush()

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)
        self._write({name: text}, step, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the next step, from which on older event files do not count after a resume."""
        return {"next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Open a new event file that makes readers leave out the steps after the checkpoint.

        Raises:
            LookupError: There are no older event files.
        """
        if not any((self._folder / self._project).glob("events.out.tfevents*")):
            raise LookupError(f"there are no event files in {self._folder / self._project}")
        self._reopen(state, purge_step=state["next_step"])


TRACKER = TensorBoardTracker
