"""The base class of trackers that record by the package of a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from accel_track.as_image import as_image
from accel_track.tracker import GeneralTracker
from accel_track.values import ValuesLeftOut, as_number, flatten, to_json


class ClientTracker(GeneralTracker):
    """A tracker that records by the client in the package of its name.

    A subclass opens the run in `start`, and writes by `_write`, `_write_images` and `_write_table`.

    Args:
        run_name: Name of the project.
        logging_dir: Folder for logs, if the tracker needs a folder.
        kwargs: Arguments for the client.
    """

    requires_logging_directory = False
    #: the types of values that the client takes
    takes: ClassVar[tuple[type, ...]] = (int, float)
    #: the method of the client's object that ends the run
    ends_by: ClassVar[str] = "finish"

    def __init__(self, run_name: str, logging_dir: str | Path = "", **kwargs: Any) -> None:
        super().__init__()
        self._project, self._folder, self._kwargs = run_name, Path(logging_dir).absolute(), kwargs
        self._run: Any = None
        #: the step of the next call that names none
        self._next_step = 0

    @classmethod
    def missing(cls) -> str | None:
        """Return what to install, or None if the client is installed."""
        found = find_spec(cls.name)  # a folder of that name in the working directory is found too, without an origin
        return None if found is not None and found.origin else f"pip install {cls.name}"

    @property
    def tracker(self) -> Any:
        """The client's object of the run."""
        return self._run

    @property
    def client(self) -> Any:
        """The module of the client."""
        return import_module(self.name)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record the values of a step that the client takes.

        Args:
            values: Values by name. Names of nested values are joined: {"loss": {"train": 1}} is loss/train.
            step: Number of the step. Default: the step after the newest.
            kwargs: Arguments for the method of the client.

        Raises:
            ValuesLeftOut: The client does not take the type of some values, or their name came twice. The others were
                recorded.
        """
        step = self._step(step)
        known: dict[str, Any] = {}
        left: list[str] = []
        for name, value in flatten(values):
            number = as_number(to_json(value))
            chosen = value if number is None else number
            if name in known:
                left.append(f"another {name}")
            elif isinstance(chosen, self.takes):
                known[name] = chosen
            else:
                left.append(f"{name} ({None if value is None else type(value).__name__})")
        if known:
            self._write(known, step, **kwargs)
        if left:
            kinds = ", ".join(kind.__name__ for kind in self.takes)
            raise ValuesLeftOut(f"{', '.join(left)} was left out: {self.name} takes {kinds}, and each name once")

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        raise NotImplementedError

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record images of a step.

        Args:
            values: Lists of images by name. Each is an array, a tensor or an image of Pillow.
            step: Number of the step. Default: the step after the newest.
            kwargs: Arguments for the method of the client.

        Raises:
            NotImplementedError: The client takes no images.
            ImportError: Pillow or numpy is not installed.
        """
        step = self._step(step)
        for name, images in values.items():
            self._write_images(name, [as_image(image) for image in images], step, **kwargs)

    def _write_images(self, name: str, images: list[Any], step: int, **kwargs: Any) -> None:
        raise NotImplementedError(f"{self.name} takes no images")

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record a table.

        Args:
            table_name: Name of the table.
            columns: Names of the columns. Default: their numbers.
            data: The rows.
            dataframe: A dataframe of pandas in place of columns and rows.
            step: Number of the step. Default: the step after the newest.
            kwargs: Arguments for the method of the client.

        Raises:
            NotImplementedError: The client takes no tables.
        """
        if dataframe is not None:  # column by column, as rows of several types would change numbers
            columns = list(dataframe.columns)
            data = list(zip(*(dataframe[name] for name in columns), strict=True))
        rows = [[to_json(cell) for cell in row] for row in data or ()]
        heads = list(columns or map(str, range(max(map(len, rows), default=0))))
        self._write_table(table_name, heads, rows, self._step(step), **kwargs)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        raise NotImplementedError(f"{self.name} takes no tables")

    def _reopen(self, state: Mapping[str, Any], **kwargs: Any) -> None:
        """Resume a run by opening it with these arguments."""
        self.finish()
        self._next_step = state["next_step"]
        self._kwargs |= kwargs
        self.start()

    def _step(self, step: int | None) -> int:
        chosen = self._next_step if step is None else int(step)
        self._next_step = max(self._next_step, chosen + 1)
        return chosen

    def finish(self) -> None:
        """End the run."""
        if self._run is not None:
            getattr(self._run, self.ends_by)()
