"""Record the exchanges of a process, in a file that outlives the process."""

from __future__ import annotations

import mmap
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple, final

#: exchanges that are kept, and bytes of each
KEPT, SIZE = 32, 256
#: bytes of what an exchange is, and of what data, at most
ABOUT = 96
_HEAD = struct.Struct("<QBBHdd")  # number, whether it is over, whether it may last, length of the text, began, ended
#: the packages of accel that a script calls, and modules that only pass calls on
OURS = frozenset(
    {
        "accel",
        "accel_amp",
        "accel_big",
        "accel_checkpoint",
        "accel_comm",
        "accel_data",
        "accel_deepspeed",
        "accel_launch",
        "accel_names",
        "accel_ops",
        "accel_parallel",
        "accel_sequence",
        "accel_state",
        "contextlib",
        "functools",
        "logging",
    }
)


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """An exchange of a process.

    Args:
        number: Number of the exchange in the process, from 1.
        what: Name of the operation.
        data: Dtype and shape, or size, of the exchanged data; empty if none is named.
        site: File and line of the script that called.
        patient: Whether it waits for work that may last.
        began: Time of the monotonic clock, in seconds.
        ended: Time of the monotonic clock, in seconds; None while it waits.
    """

    number: int
    what: str
    data: str
    site: str
    patient: bool
    began: float
    ended: float | None

    def __str__(self) -> str:
        return f"{self.what}{f' of {self.data}' if self.data else ''} at {self.site}"


class _Exchange(NamedTuple):
    """An exchange that has not ended."""

    number: int
    began: float
    patient: bool
    text: bytes


#: those of this process whose newest exchange a device may go on with
_settling: weakref.WeakValueDictionary[int, FlightRecorder] = weakref.WeakValueDictionary()


def settle() -> None:
    """Note for every flight recorder of this process which work devices have done."""
    for recorder in list(_settling.values()):
        recorder.settle()


@final
class FlightRecorder:
    """The newest exchanges of this process, in a file that others can read, or only in memory.

    To note an exchange takes about 3 µs.

    Args:
        path: File to make; if it exists or cannot be made, the exchanges are in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.number = 0
        #: the range of the exchanges of a name that this rank had no need of, since it took part in such an exchange
        self.skipped: dict[str, tuple[int, int]] = {}
        #: the thread that began the newest exchange, before the first one the main thread
        self.thread = threading.main_thread().ident
        self._newest = _Exchange(0, 0.0, False, b"")
        #: an exchange that the host has left and a device has not, and whether the device has done it
        self._on_device: tuple[_Exchange, Callable[[], bool]] | None = None
        self._map = mmap.mmap(-1, KEPT * SIZE) if path is None else _in_file(path)

    def begin(self, what: str, data: str = "", *, patient: bool = False) -> str:
        """Note that an exchange begins, and return the file and line of the script that asked for it.

        Args:
            what: Name of the operation.
            data: Description of the exchanged data.
            patient: Whether it waits for work that may last.
        """
        site = call_site()
        self.settle()
        self._on_device = None
        self.thread = threading.get_ident()
        self.number += 1
        self.skipped.pop(what, None)
        self._newest = _Exchange(self.number, time.monotonic(), patient, _text(what, data, site))
        self._write(self._newest, 0.0)
        return site

    def end(self, done: Callable[[], bool] | None = None) -> None:
        """Note that the exchange is over.

        Args:
            done: Function that returns whether a device, which continues with the exchange, has done it.
        """
        if done is not None:
            self._on_device = self._newest, done
            _settling[id(self)] = self
        else:
            self._write(self._newest, time.monotonic())

    def skip(self, what: str) -> None:
        """Count an exchange that this rank has no need of."""
        self.number += 1
        self.skipped[what] = self.skipped.get(what, (self.number,))[0], self.number + 1

    def settle(self) -> None:
        """Note that the exchange with which a device continued is over, if it is. Any thread may call."""
        pending = self._on_device
        if pending is not None and pending[1]():
            self._on_device = None
            self._write(pending[0], time.monotonic())  # the main thread may have begun another exchange meanwhile

    def _write(self, exchange: _Exchange, ended: float) -> None:
        number, began, patient, text = exchange
        place = number % KEPT * SIZE
        record = _HEAD.pack(number, ended > 0, patient, len(text), began, ended) + text
        self._map[place : place + len(record)] = record

    def newest(self) -> CollectiveRecord | None:
        """Return the newest exchange, or None before the first."""
        self.settle()
        records = _records(self._map[:])
        return records[-1] if records else None


@lru_cache(256)
def _text(what: str, data: str, site: str) -> bytes:
    about = f"{what[: ABOUT // 2]}\0{data}".encode(errors="replace")[:ABOUT]
    line = site.encode(errors="replace")
    return about + b"\0" + line[-(SIZE - _HEAD.size - ABOUT - 1) :]  # of a long path the end matters


def _in_file(path: Path) -> mmap.mmap:
    try:
        # a new file: one that is there is another job's, whose variables this one has inherited
        with path.open("x+b") as file:
            file.write(bytes(KEPT * SIZE))  # a hole would be filled later, and kill the process where the disk is full
            file.flush()
            return mmap.mmap(file.fileno(), KEPT * SIZE)
    except OSError:
        return mmap.mmap(-1, KEPT * SIZE)


def read(path: Path) -> list[CollectiveRecord]:
    """Return the newest exchanges that a process noted in a file, in their order, or none without such a file."""
    return _records(path.read_bytes()) if path.exists() else []


def _records(content: bytes) -> list[CollectiveRecord]:
    records = []
    for place in range(0, len(content) - SIZE + 1, SIZE):
        number, over, patient, length, began, ended = _HEAD.unpack_from(content, place)
        text = content[place + _HEAD.size : place + _HEAD.size + length].decode(errors="replace").split("\0")
        if number and len(text) == 3:
            what, data, site = text
            records.append(CollectiveRecord(number, what, data, site, bool(patient), began, ended if over else None))
    return sorted(records, key=lambda record: record.number)


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame is accel's own, or only passes a call on."""
    # the hash of a name is known; that of a code object is computed each time
    return _is_ours(frame.f_globals.get("__name__", ""))


@lru_cache(None)
def _is_ours(name: str) -> bool:
    return str(name).partition(".")[0] in OURS


def call_site() -> str:
    """Return the file and line outside of accel from which this call comes."""
    frame = sys._getframe(1)
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
