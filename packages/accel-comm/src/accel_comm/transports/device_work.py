"""Ask a device whether it has done what it was asked for, and read from it, in any thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: a thread in this mode is refused no call because another thread captures a graph; the number is the driver's
THREAD_LOCAL = 1
#: the library that has the thread's mode, and its call, for each platform of torch
_EXCHANGES = {
    "cuda": ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
    "hip": ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
}
_permitted = threading.local()


def work_of(stream: Any) -> Callable[[], bool]:
    """Return a function that tells whether a device has done what a stream was asked for until now, in any thread."""
    event = stream.record_event()

    def done() -> bool:
        with asking(stream.device):
            return bool(event.query())

    return done


@contextmanager
def asking(device: torch.device) -> Iterator[None]:
    """Return a context in which any thread may ask a device, or read from it, also while another captures a graph."""
    if threading.current_thread() is threading.main_thread():
        yield
        return
    import torch

    if not vars(_permitted):
        _permitted.once = True
        _permit_calls_in_captures()
    # a thread begins on the first device, on which the driver would make a context of this process
    with torch.accelerator.device_index(device.index):
        yield


def _permit_calls_in_captures() -> None:
    """Put this thread into a mode in which its calls do not break a capture (torch.cuda.graph) of another, for good."""
    import torch.version

    for platform, (library, call) in _EXCHANGES.items():
        # without the call there is nothing better than to ask: a watchdog that does not would take the work for a hang
        with suppress(OSError, AttributeError):
            if vars(torch.version)[platform] is not None:
                getattr(ctypes.CDLL(library), call)(ctypes.byref(ctypes.c_int(THREAD_LOCAL)))
