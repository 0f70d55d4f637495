"""Entries that are handed on by a thread."""

import logging
import os
import threading
import time
from typing import Any

import pytest
from accel_testing import stretched
from accel_track.delivery import Delivery, DueCall
from accel_track.pump import Pump
from accel_track.tracker import GeneralTracker
from accel_track.values import ValuesLeftOut


def soon(ready: Any) -> bool:
    until = time.monotonic() + stretched(20)
    while not ready() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(ready())


def test_entries_come_in_order_from_another_thread() -> None:
    """S133."""
    came: list[int] = []
    threads: set[int] = set()

    def deliver(batch: list[int]) -> None:
        came.extend(batch)
        threads.add(threading.get_ident())

    pump = Pump(deliver)
    for number in range(100):
        pump.put(number)
    assert soon(lambda: len(came) == 100)
    assert came == list(range(100))
    assert threads == {pump._thread.ident}
    assert pump.close() == 0


def test_what_is_held_back_comes_with_the_next_or_with_a_flush() -> None:
    came: list[int] = []
    pump = Pump(came.extend, hold_back=1)
    pump.put(1)
    pump.put(2)
    assert soon(lambda: came == [1])
    assert pump.flush()
    assert came == [1, 2]
    pump.close()


def test_a_tracker_that_hangs_is_not_waited_for_longer_than_that() -> None:
    entered, leave = threading.Event(), threading.Event()

    def deliver(_: list[int]) -> None:
        entered.set()
        leave.wait(stretched(60))

    pump = Pump(deliver)
    pump.put(1)
    assert entered.wait(stretched(20))
    pump.put(2)
    assert not pump.flush(timeout_s=0.01)
    assert pump.close(timeout_s=0.01) == 2
    leave.set()
    pump._thread.join()


def test_a_forked_process_delivers_nothing() -> None:
    """S133: such as a worker of a loader."""
    came: list[int] = []
    pump = Pump(came.extend, hold_back=5)
    pump.put(1)
    if (child := os.fork()) == 0:
        pump.put(2)
        pump.flush()
        pump.close()
        os._exit(len(came))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pump.close()
    assert came == [1]


class Fragile(GeneralTracker):
    name = "fragile"
    requires_logging_directory = False
    tracker: Any = property(lambda self: self)

    def __init__(self) -> None:
        super().__init__()
        self.came: list[Any] = []

    def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
        if step in (1, 2):
            raise ConnectionError("no network")
        self.came.append((values, step, kwargs))


def test_a_tracker_that_raises_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """S133: and the others get everything."""
    broken, whole = Fragile(), Fragile()
    whole.name = "whole"
    deliveries = [Delivery(tracker, lambda batch: batch) for tracker in (broken, whole)]
    with caplog.at_level(logging.WARNING, "accel"):
        for delivery in deliveries:
            delivery.deliver(
                [DueCall("log", ({"a": step},), {"step": step}, {"whole": {"commit": step}}) for step in (0, 1, 2, 3)]
            )
    assert [message for message in caplog.messages if "fragile" in message] == [
        "the tracker fragile failed in log, and training goes on without what was lost: ConnectionError: no network"
    ]
    assert [step for _, step, _ in broken.came] == [0, 3]
    assert whole.came == [({"a": step}, step, {"commit": step}) for step in (0, 3)]
    assert [delivery.lost for delivery in deliveries] == [2, 2]


def test_values_that_are_left_out_are_told_and_hide_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Choosy(Fragile):
        def log(self, values: Any, step: int | None = None, **kwargs: Any) -> None:
            if None in values.values():
                raise ValuesLeftOut("grad (None) was left out")
            super().log(values, step, **kwargs)

    delivery = Delivery(Choosy(), lambda batch: batch)
    with caplog.at_level(logging.WARNING, "accel"):
        delivery.deliver([DueCall("log", ({"grad": value},), {"step": 1}) for value in (None, None, 0.5)])
    assert caplog.messages == [
        "the tracker fragile left values out of log, and training goes on without what was lost:"
        " ValuesLeftOut: grad (None) was left out",
        "the tracker fragile failed in log, and training goes on without what was lost: ConnectionError: no network",
    ]


def test_values_that_cannot_be_read_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    def read(_: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        raise RuntimeError("the device is gone")

    delivery = Delivery(Fragile(), read)
    delivery.deliver([DueCall("log", ({},))] * 3)
    assert "the device is gone" in caplog.text
    assert delivery.lost == 3


def test_a_tracker_says_what_it_lacks() -> None:
    class Empty(GeneralTracker):
        pass

    with pytest.raises(NotImplementedError, match="Empty lacks name, requires_logging_directory, tracker"):
        Empty()
    blank = GeneralTracker(_blank=True)
    blank.log({"a": 1})
    blank.finish()


def test_an_interrupt_while_the_arguments_of_calls_are_read_is_passed_on() -> None:
    """It is the program's; the calls are not read again one by one."""
    interrupts = [KeyboardInterrupt()]

    def read(batch: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if interrupts:
            raise interrupts.pop()
        return batch

    with pytest.raises(KeyboardInterrupt):
        Delivery(Fragile(), read).deliver([DueCall("log", (1,)), DueCall("log", (2,))])
