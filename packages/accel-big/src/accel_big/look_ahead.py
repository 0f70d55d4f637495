"""Read the weights of the modules that run next while a module computes."""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, final

import torch
from accel_ops.copy_stream import CopyStream

from accel_big.offload.unit import OffloadedUnit

Numbers = list[torch.Tensor]


@final
class LookAhead:
    """A reader that brings units to their device and takes them away, from any number of threads.

    The order is learned: after two units in a row, the unit that came next is read next. What is sent ahead to a device
    takes no more memory than the largest unit, and on the host twice as much is read ahead, so that the next unit is
    at hand and travels while this one computes. On the CPU, units stay in memory after their first forward as far as
    there is room, since a new mapping costs more than a small product.

    Args:
        room_bytes: Memory for units that stay and for the largest unit.
        may_stay: Names of the weights that may stay. A unit stays only if all of its weights may.
    """

    def __init__(self, room_bytes: int = 0, may_stay: frozenset[str] = frozenset()) -> None:
        self.budget_bytes = 0
        self._room_bytes, self._names = room_bytes, may_stay
        self._kept: dict[OffloadedUnit, Numbers] = {}
        self._next: dict[tuple[int, int], OffloadedUnit] = {}
        self._renew()
        _ALL.add(self)

    def _renew(self) -> None:
        """Start without thread and lock, also in a process that was forked and has neither."""
        self._lock = threading.RLock()
        # Python joins its thread at the end: a thread inside of torch would end the process by SIGABRT
        self._reader = ThreadPoolExecutor(1, "accel-look-ahead")
        self._ahead: dict[OffloadedUnit, Future[Numbers]] = {}
        self._sent: dict[OffloadedUnit, tuple[Numbers, Any]] = {}
        self._streams: dict[torch.device, CopyStream] = {}
        self._recent = threading.local()

    def __getstate__(self) -> tuple[int, int, frozenset[str]]:
        """Return what a copy of the model keeps: it learns the order anew, and maps anew."""
        return self.budget_bytes, self._room_bytes + sum(unit.size for unit in self._kept), self._names

    def __setstate__(self, state: tuple[int, int, frozenset[str]]) -> None:
        self.__init__(*state[1:])
        self.budget_bytes = state[0]

    def add(self, unit: OffloadedUnit) -> None:
        """Register a unit."""
        self.budget_bytes = max(self.budget_bytes, unit.size)

    def enter(self, unit: OffloadedUnit) -> None:
        """Move a unit to its device, before the forward of its module."""
        with self._lock:
            if unit.users == 0:
                unit.install(self._numbers(unit))
            unit.users += 1
            before = self._recent.__dict__.get("units", (0, 0))
            self._next[before] = unit
            self._recent.units = (before[1], id(unit))
            self._read_on(unit, self._recent.units)

    def leave(self, unit: OffloadedUnit) -> None:
        """Remove a unit from its device, after the last forward that uses it."""
        with self._lock:
            unit.users -= 1
            if unit.users == 0:
                unit.remove()

    def _numbers(self, unit: OffloadedUnit) -> Numbers:
        if unit in self._kept:
            return self._kept[unit]
        pending = self._ahead.pop(unit, None)
        if unit not in self._sent:
            read = unit.read() if pending is None else pending.result()
            if not _has_streams(unit.device):
                numbers = [tensor.to(unit.device) for tensor in read]
                if self._may_stay(unit):
                    self._kept[unit] = numbers
                    self._room_bytes -= unit.size
                return numbers
            self._send(unit, read)
        numbers, copied = self._sent.pop(unit)
        self._streams[unit.device].await_copy(copied)
        return numbers

    def _may_stay(self, unit: OffloadedUnit) -> bool:
        if unit.device.type != "cpu" or unit.size + self.budget_bytes > self._room_bytes:
            return False
        return all(slot.key in self._names for slot in unit.slots)

    def _send(self, unit: OffloadedUnit, read: Numbers) -> None:
        """Start a copy from pinned memory on a stream of its own. Only threads that compute do so."""
        stream = self._streams.setdefault(unit.device, CopyStream(unit.device))
        self._sent[unit] = stream.send(read)

    @property
    def _sent_bytes(self) -> int:
        return sum(unit.size for unit in self._sent)

    def _read_on(self, unit: OffloadedUnit, recent: tuple[int, int]) -> None:
        """Read what comes after a unit as far as the bound allows, and forget what was read and did not come."""
        chain: list[OffloadedUnit] = []
        size, sends = 0, _has_streams(unit.device)
        most = self.budget_bytes * (2 if sends else 1)
        while (following := self._next.get(recent)) is not None:
            size += following.size
            if following is unit or following in chain or size > most:
                break
            chain.append(following)
            recent = (recent[1], id(following))
        for wrong in [*self._ahead, *self._sent]:
            if wrong not in chain:
                if wrong in self._ahead:
                    self._ahead.pop(wrong).cancel()
                self._sent.pop(wrong, None)
        for following in (unit for unit in chain if unit not in self._kept):
            pending = self._ahead.get(following)
            if pending is None and following not in self._sent and following.users == 0:
                with suppress(RuntimeError):  # Python ends, and takes no more work: a forward reads by itself
                    self._ahead[following] = self._reader.submit(following.read, ahead=True)
            elif pending is not None and pending.done() and sends and self._sent_bytes + following.size <= most // 2:
                self._send(following, self._ahead.pop(following).result())


def _has_streams(device: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type == device.type


_ALL: weakref.WeakSet[LookAhead] = weakref.WeakSet()


def _renew_all() -> None:
    for look_ahead in list(_ALL):
        look_ahead._renew()


os.register_at_fork(after_in_child=_renew_all)
