"""Records of the exchanges of a process, in a file that outlives the process."""

from __future__ import annotations

import mmap
import struct
import sys
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
#: the packages of accel that a script calls
OURS = frozenset(
    f"accel{name}" for name in ("", "_amp", "_checkpoint", "_comm", "_data", "_launch", "_ops", "_parallel", "_state")
)


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """An exchange: its number in the process, the call, the data, and the user's line that called.

    A `patient` exchange waits for work that may last; `ended` is None while it waits.

    Units: seconds of the monotonic clock.
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


class _OnDevice(NamedTuple):
    """An exchange that the host has left and a device has not."""

    number: int
    began: float
    patient: bool
    text: bytes
    done: Callable[[], bool]


#: those of this process whose newest exchange a device may go on with
_settling: weakref.WeakValueDictionary[int, FlightRecorder] = weakref.WeakValueDictionary()


def settle() -> None:
    """Notes for every flight recorder of this process which work devices have done meanwhile."""
    for recorder in list(_settling.values()):
        recorder.settle()


@final
class FlightRecorder:
    """The newest exchanges of this process, in a file that others can read, or only in memory.

    To note an exchange costs about three microseconds.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.number = 0
        self._began = 0.0
        self._text, self._patient = b"", False
        self._on_device: _OnDevice | None = None
        self._map = mmap.mmap(-1, KEPT * SIZE) if path is None else _in_file(path)

    def begin(self, what: str, data: str = "", *, patient: bool = False) -> str:
        """Notes that an exchange begins: the line of the user's that asked for it."""
        site = call_site()
        self.settle()
        self._on_device = None
        self.number += 1
        self._text = _text(what, data, site)
        self._began, self._patient = time.monotonic(), patient
        self._write(0.0)
        return site

    def end(self, done: Callable[[], bool] | None = None) -> None:
        """Notes that the exchange is over; if a device goes on with it, once it is found to be done."""
        if done is not None:
            self._on_device = _OnDevice(self.number, self._began, self._patient, self._text, done)
            _settling[id(self)] = self
            return
        self._write(time.monotonic())

    def settle(self) -> None:
        """Notes that the exchange with which the device went on is over, if it is; any thread may call."""
        pending = self._on_device
        if pending is not None and pending.done():
            self._on_device = None
            # what the slot of that number says, for the main thread may have begun another exchange meanwhile
            self._put(pending.number, pending.began, pending.patient, pending.text, time.monotonic())

    def _write(self, ended: float) -> None:
        self._put(self.number, self._began, self._patient, self._text, ended)

    def _put(self, number: int, began: float, patient: bool, text: bytes, ended: float) -> None:
        place = number % KEPT * SIZE
        record = _HEAD.pack(number, ended > 0, patient, len(text), began, ended) + text
        self._map[place : place + len(record)] = record

    def newest(self) -> CollectiveRecord | None:
        """The newest exchange, or None before the first."""
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
    """The newest exchanges that a process noted in the file, in their order; none if there is no such file."""
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


_known: dict[str, bool] = {}


def is_ours(frame: FrameType) -> bool:
    """Whether a frame is accel's own, or only passes a call on."""
    name = frame.f_globals.get("__name__", "")  # its hash is known; that of a code object is computed each time
    ours = _known.get(name)
    if ours is None:
        module = str(name).partition(".")[0]
        ours = _known[name] = module in OURS or module in ("contextlib", "functools", "logging")
    return ours


def call_site() -> str:
    """The file and line outside of accel that has led here."""
    frame = sys._getframe(1)
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
