"""Lets loader workers end by themselves when the process does."""

from __future__ import annotations

import atexit
from typing import Any
from weakref import WeakSet

_iterators: WeakSet[Any] = WeakSet()
_workers: WeakSet[Any] = WeakSet()


def end_at_exit(iterator: Any) -> None:
    """Ends the workers of torch's iterator when the process ends, before anybody tells them to by a signal.

    Workers that leave signals to this process (`shield`) would not hear that, and be waited for.
    """
    if hasattr(iterator, "_shutdown_workers"):
        _iterators.add(iterator)
        _workers.update(iterator._workers)
        # what is registered last comes first: before torch's own, which is registered with each iterator
        atexit.unregister(_end)
        atexit.register(_end)


def _end() -> None:
    for iterator in list(_iterators):
        iterator._shutdown_workers()
    for worker in list(_workers):
        if worker.is_alive():  # in the middle of something that does not end
            worker.kill()
