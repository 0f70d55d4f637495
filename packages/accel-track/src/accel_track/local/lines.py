"""Files of lines of JSON, each of which is there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final


def as_line(entry: Mapping[str, Any]) -> bytes:
    """The entry as a line of strict JSON."""
    return json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a file, without a last line that was cut; none if there is no file."""
    if path.exists():
        with path.open("rb") as file:
            yield from (json.loads(line) for line in file if line.endswith(b"\n"))


@final
class LineFile:
    """A file to which whole lines are added; each carries the number `n` of the call that it is of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry.

        Raises: OSError if the disk does not take it; the file ends with a whole line all the same.
        """
        line, end = as_line(entry), os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"{self.path}: {written} of {len(line)} bytes were written; is the disk full?")
        except OSError:
            os.ftruncate(self._descriptor, end)
            raise

    def keep_until(self, number: int, ending: str) -> list[dict[str, Any]]:
        """Moves the calls from `number` on, which it returns, into a file of this ending: no whole line is lost."""
        kept, given_up = list[dict[str, Any]](), list[dict[str, Any]]()
        for entry in entries(self.path):
            (kept if entry["n"] < number else given_up).append(entry)
        if given_up:
            self.path.with_name(self.path.name + ending).write_bytes(b"".join(map(as_line, given_up)))
        aside = self.path.with_suffix(".new")
        aside.write_bytes(b"".join(map(as_line, kept)))
        os.replace(aside, self.path)
        self.close()
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        return given_up

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)
