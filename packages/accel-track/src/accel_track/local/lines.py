"""Read and write files of lines of JSON, each of which is whole unless a disk or a power loss has damaged it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from accel_track.local.damage import free_path, put_aside, tell_damage
from accel_track.local.record_lock import is_locked

#: what a line holds beside the number of its call and its step: at least one of these, of this type
KINDS = {"metrics": dict, "images": dict, "table": object}


def as_line(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as a line of strict JSON."""
    return json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of 64 bits, as the number of a step is."""
    return type(value) is int and abs(value) < 2**63


def entries(path: Path, noted: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file, and warn, once, of a file or of lines that cannot be read, or that are missing.

    Args:
        path: The file.
        noted: How many lines it had when its writer noted them.
    """
    found = damaged = cut = 0
    try:
        for line, entry in _read(path):
            found, cut = found + 1, not line.endswith(b"\n")
            if entry is None:
                damaged += 1
            else:
                yield entry
    except OSError as error:
        tell_damage(path, f"it cannot be read: {error.strerror}")
        return
    if is_locked(path.parent):
        damaged -= cut  # its writer is about to end the line
    elif found < noted:
        tell_damage(path, f"it has {found} of the {noted} lines that were written")
    if damaged:
        tell_damage(path, f"{damaged} of its lines cannot be read, and are left out")


def _read(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each line with its entry, or None if the line is damaged or has the number of an earlier line."""
    numbers = set[int]()
    with path.open("rb") as file:
        for line in file:
            entry = _entry(line)
            if entry is not None and entry["n"] in numbers:
                entry = None
            if entry is not None:
                numbers.add(entry["n"])
            yield line, entry


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode()) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not is_count(found.get("n")) or not is_count(found.get("step")):
        return None
    held = [isinstance(found[name], kind) for name, kind in KINDS.items() if name in found]
    return found if held and all(held) else None


@final
class LineFile:
    """A file to which whole lines are added. Each has the number `n` of its call.

    A file or folder that cannot be opened is put aside.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: how many lines were added or kept
        self.lines = 0
        try:
            self._descriptor = self._open()
        except (IsADirectoryError, PermissionError) as error:
            put_aside(path, f"it cannot be opened: {error.strerror}")
            self._descriptor = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an entry.

        Raises:
            OSError: It cannot be written. The file ends with a whole line all the same.
        """
        line, end = as_line(entry), os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(f"{self.path}: {written} of {len(line)} bytes were written; is the disk full?")
        except OSError:
            os.ftruncate(self._descriptor, end)
            raise
        self.lines += 1

    def keep_until(self, number: int, ending: str) -> list[dict[str, Any]]:
        """Move later calls into another file, and damaged lines aside.

        Args:
            number: Number of the first call to move.
            ending: What the name of the other file has after the name of this file.

        Returns:
            The entries that were moved.
        """
        kept: list[bytes] = []
        moved: list[bytes] = []
        given_up: list[dict[str, Any]] = []
        damaged: list[bytes] = []
        for line, entry in _read(self.path):
            if entry is None:
                damaged.append(line)
            elif entry["n"] < number:
                kept.append(line)
            else:
                moved.append(line)
                given_up.append(entry)
        if moved:
            self.path.with_name(self.path.name + ending).write_bytes(b"".join(moved))
        if damaged:
            aside = free_path(self.path)
            aside.write_bytes(b"".join(damaged))
            tell_damage(self.path, f"{len(damaged)} of its lines cannot be read, and are kept in {aside.name}")
        renewed = self.path.with_suffix(".new")
        renewed.write_bytes(b"".join(kept))
        os.replace(renewed, self.path)
        self.close()
        self._descriptor = self._open()
        self.lines = len(kept)
        return given_up

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
