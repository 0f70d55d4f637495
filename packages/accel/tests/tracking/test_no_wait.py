"""Logging makes the host wait for no device."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator
from accel.tracking import GeneralTracker, captured
from accel_comm.transports import device_work
from accel_testing import MakePool
from suite.recording_backend import missing, register
from suite.recording_device import RecordingDevice

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Remembers(GeneralTracker):
    name = "remembers"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.came: list[Any] = []

    @property
    def tracker(self) -> list[Any]:
        return self.came

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        self.came.append(values)


class Here:
    """Delivers when it is flushed, in the thread that asks: the stand-in is there for that thread alone."""

    def __init__(self, deliver: Any, hold_back: int) -> None:
        self.deliver, self.put, self.entries = deliver, (entries := list[Any]()).append, entries

    def flush(self, timeout_s: float) -> bool:
        self.deliver(self.entries)
        self.entries.clear()
        return True

    def close(self, timeout_s: float) -> int:
        self.flush(timeout_s)
        return 0


def logged(by_hand: bool) -> tuple[int, list[Any]]:
    """How often the host waits in the calls of log, and what the tracker has got."""
    device = RecordingDevice(register())
    tracker = Remembers()
    with device.installed():
        accelerator = Accelerator(log_with=tracker)
        with patch("accel.tracking.session.Pump", Here):
            accelerator.init_trackers("project")
        total = device.put(torch.tensor(1.0))
        device.waits.clear()
        for step in range(3):
            total += 1  # changes in place what was logged before
            accelerator.log({"total": total.item() if by_hand else total, "many": {"deep": total * 2}}, step=step)
        waits = len(device.waits)
        accelerator.end_training()
    return waits, tracker.came


def test_logging_waits_for_no_device(world: MakePool) -> None:
    """S133: and all values are read together, each as it was when it was logged."""
    ((waits, came),) = world(1, join=False).run(logged, False)
    assert waits == 0
    assert came == [{"total": value, "many": {"deep": value * 2}} for value in (2.0, 3.0, 4.0)]


def test_a_wait_of_a_script_is_seen(world: MakePool) -> None:
    ((waits, _),) = world(1, join=False).run(logged, True)
    assert waits == 3


def test_the_thread_that_delivers_waits_on_the_device_of_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread begins on the first device, where each process would get a context, and may break captures of others."""
    current, waited, permitted = [0], list[int](), list[str]()
    monkeypatch.setattr(
        device_work, "_permit_calls_in_captures", lambda: permitted.append(threading.current_thread().name)
    )

    @contextmanager
    def device_index(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr("torch.accelerator.device_index", device_index)
    monkeypatch.setattr(captured, "runs_on_streams", lambda _: True)
    device = RecordingDevice()
    event = SimpleNamespace(synchronize=lambda: waited.append(current[-1]))
    stream = SimpleNamespace(device=torch.device(device.device.type, 3), record_event=lambda: event)
    with device.installed():
        monkeypatch.setattr("torch.accelerator.current_stream", lambda _: stream)
        _, wait = captured.captured({"loss": device.put(torch.tensor(1.0))})
    assert wait is not None
    thread = threading.Thread(target=wait, name="delivers")
    thread.start()
    thread.join()
    assert (waited, current, permitted) == ([3], [0], ["delivers"])
