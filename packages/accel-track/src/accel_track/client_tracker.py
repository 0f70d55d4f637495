"""What the trackers of other packages share: names, steps, and what their clients take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from accel_track.tracker import GeneralTracker
from accel_track.values import as_number, flat, plain


class ClientTracker(GeneralTracker):
    """Hands a run to the client of the package that has the tracker's name; other arguments go to that client.

    A subclass opens the run in `start`, and writes by `_write`, `_write_images` and `_write_table`.
    """

    requires_logging_directory = False
    #: the types of values that the client takes
    takes: ClassVar[tuple[type, ...]] = (int, float)

    def __init__(self, project: str, /, **kwargs: Any) -> None:
        super().__init__()
        self._project, self._kwargs = project, kwargs
        self._run: Any = None
        #: the step of the next call that names none
        self._next_step = 0

    @classmethod
    def missing(cls) -> str | None:
        """What to install; None if the client is there."""
        found = find_spec(cls.name)  # a folder of that name in the working directory is found too, without an origin
        return None if found is not None and found.origin else f"pip install 'accel-track[{cls.name}]'"

    @property
    def tracker(self) -> Any:
        """The client's object of the run."""
        return self._run

    @property
    def client(self) -> Any:
        """The client's module."""
        return import_module(self.name)

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Records what the client takes, under paths: {"loss": {"train": 1}} is loss/train.

        Raises: TypeError that names what was left out.
        """
        step, found = self._step(step), dict(flat(values))
        for name, value in found.items():
            if isinstance(number := as_number(plain(value)), int | float):
                found[name] = number
        if known := {name: value for name, value in found.items() if isinstance(value, self.takes)}:
            self._write(known, step, **kwargs)
        if left := [f"{name} ({type(value).__name__})" for name, value in found.items() if name not in known]:
            kinds = ", ".join(kind.__name__ for kind in self.takes)
            raise TypeError(f"{self.name} takes {kinds}, and {', '.join(left)} was left out")

    def _write(self, values: dict[str, Any], step: int, **kwargs: Any) -> None:
        raise NotImplementedError

    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Records images.

        Raises: NotImplementedError if the client takes none.
        """
        import numpy as np

        step = self._step(step)
        for name, images in values.items():
            given = [image if hasattr(image, "save") else np.asarray(image) for image in images]
            self._write_images(name, given, step, **kwargs)

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
        """Records a table.

        Raises: NotImplementedError if the client takes none.
        """
        if dataframe is not None:
            columns, data = list(dataframe.columns), dataframe.to_numpy().tolist()
        rows = [[plain(cell) for cell in row] for row in data or ()]
        heads = list(columns or (str(place) for place in range(max(map(len, rows), default=0))))
        self._write_table(table_name, heads, rows, self._step(step), **kwargs)

    def _write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int, **kwargs: Any) -> None:
        raise NotImplementedError(f"{self.name} takes no tables")

    def _step(self, step: int | None) -> int:
        chosen = self._next_step if step is None else int(step)
        self._next_step = max(self._next_step, chosen + 1)
        return chosen
