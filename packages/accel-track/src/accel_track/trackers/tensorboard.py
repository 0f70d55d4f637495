"""TensorBoard, by torch's writer of event files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from accel_track.tracker import GeneralTracker
from accel_track.values import as_number, flat, plain


@final
class TensorBoardTracker(GeneralTracker):
    """Writes event files into the folder `logging_dir`/project; other arguments go to SummaryWriter."""

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | Path, **kwargs: Any) -> None:
        super().__init__()
        self._folder, self._kwargs = Path(logging_dir).absolute() / run_name, kwargs
        self._writer: Any = None
        #: the step of the next call that names none
        self._next_step = 0

    @classmethod
    def missing(cls) -> str | None:
        """What to install; None if tensorboard and torch are there."""
        there = find_spec("tensorboard") is not None and find_spec("torch") is not None
        return None if there else "pip install 'accel-track[tensorboard]'"

    @property
    def tracker(self) -> Any:
        """The SummaryWriter."""
        return self._writer

    def start(self) -> None:
        """Opens an event file."""
        self._open()

    def _open(self, **more: Any) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), **{**self._kwargs, **more})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Writes the values as hyperparameters, and as YAML."""
        settings = {name: plain(value) for name, value in flat(plain(values))}
        # TensorBoard takes numbers and texts only
        known = {
            name: value if isinstance(value, int | float | str) else str(value) for name, value in settings.items()
        }
        self._writer.add_hparams(known, metric_dict={}, run_name=".")
        lines = [f"{name}: {value!r}\n" for name, value in known.items()]
        (self._folder / "hparams.yml").write_text("".join(lines), encoding="utf-8")

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Writes numbers as scalars, and texts; others are left out with an error."""
        step, unknown = self._step(step), []
        for name, value in flat(values):
            if (number := as_number(plain(value))) is not None:
                self._writer.add_scalar(name, number, global_step=step, **kwargs)
            elif isinstance(value, str):
                self._writer.add_text(name, value, global_step=step, **kwargs)
            else:
                unknown.append(name)
        self._writer.flush()
        if unknown:
            raise TypeError(f"TensorBoard takes numbers and texts, and {', '.join(unknown)} are neither")

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Writes images, in the layout (images, height, width, channels) unless `dataformats` says another."""
        import numpy as np

        step = self._step(step)
        for name, images in values.items():
            together = np.stack([np.asarray(image) for image in images])
            self._writer.add_images(name, together, global_step=step, **{"dataformats": "NHWC", **kwargs})
        self._writer.flush()

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Writes a table as text."""
        if dataframe is not None:
            columns, data = list(dataframe.columns), dataframe.to_numpy().tolist()
        heads = list(columns or [""] * max(map(len, data or [()])))
        rows = [heads, ["---"] * len(heads), *(data or [])]
        text = "\n".join(f"| {' | '.join(str(plain(cell)).replace('|', '/') for cell in row)} |" for row in rows)
        self._writer.add_text(table_name, text, global_step=self._step(step))
        self._writer.flush()

    def _step(self, step: int | None) -> int:
        chosen = self._next_step if step is None else int(step)
        self._next_step = max(self._next_step, chosen + 1)
        return chosen

    def finish(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        """The step after which the reader is to leave out what older event files have."""
        return {"next_step": self._next_step}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Opens a new event file that makes readers leave out the steps after the checkpoint.

        Raises: LookupError without older event files.
        """
        if not any(self._folder.glob("events.out.tfevents*")):
            raise LookupError(f"there are no event files in {self._folder}")
        if self._writer is not None:
            self._writer.close()
        self._next_step = state["next_step"]
        self._open(purge_step=self._next_step)


TRACKER = TensorBoardTracker
