"""Exchange in a thread that waits for other ranks while the training goes on."""

from __future__ import annotations

import _thread
import atexit
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: seconds that the end of the process waits at most for threads that it has told to end
ENDING_S = 1.0
#: the exchanges that are not over, each with the function that ends its wait
_under_way: dict[Future[Any], Callable[[], None]] = {}


def post(exchange: Callable[[], T], before: Future[Any] | None, abandon: Callable[[], None]) -> Future[T]:
    """Begin an exchange in a thread of its own, and return its result to come.

    Args:
        exchange: Function that waits for other ranks.
        before: The exchange posted before, after which this one begins, and with which it fails.
        abandon: Function that ends the waits of `exchange` at the end of the process.
    """
    future = Future[T]()

    def run() -> None:
        try:
            if before is not None:
                before.result()
            future.set_result(exchange())
        except BaseException as error:  # noqa: BLE001 - whoever reads the result raises it
            future.set_exception(error)

    # 11 µs; `threading.Thread` takes 75, in which it waits for its thread to begin
    _thread.start_new_thread(run, ())
    _under_way[future] = abandon
    future.add_done_callback(_under_way.pop)
    return future


@atexit.register
def _end() -> None:
    """Let no thread wait in torch when Python ends: if it were woken then, it would abort the process (SIGABRT)."""
    until = time.monotonic() + ENDING_S
    while _under_way and time.monotonic() < until:
        for abandon in list(_under_way.values()):
            abandon()
        time.sleep(0.001)


# a forked process has none of the threads, and an end of their waits would close connections of its parent
os.register_at_fork(after_in_child=_under_way.clear)
