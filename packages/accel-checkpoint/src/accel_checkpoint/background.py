"""Writes checkpoints while training goes on: a copy in memory, and one thread that writes it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import final

import torch

Files = Mapping[str, Mapping[str, torch.Tensor]]


@final
class Snapshot:
    """Copies of tensors in memory of the CPU, which is kept from one copy to the next."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], torch.Tensor] = {}

    def take(self, files: Files) -> dict[str, dict[str, torch.Tensor]]:
        """The tensors as they are now, in memory that nothing changes until the next call."""
        before, self._kept = self._kept, {}
        taken: dict[str, dict[str, torch.Tensor]] = {}
        on_device = False
        for file, tensors in files.items():
            taken[file] = {}
            for name, tensor in tensors.items():
                copy = before.pop((file, name), None)
                if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                    pinned = tensor.device.type == "cuda"
                    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
                on_device = on_device or tensor.device.type == "cuda"
                self._kept[file, name] = taken[file][name] = copy.copy_(tensor.detach(), non_blocking=True)
        if on_device:
            torch.cuda.synchronize()
        return taken


@final
class Background:
    """One piece of work at a time, in a thread; its error is raised by the next `wait`.

    Work that was begun is finished before the process ends; one that fails then is said, and ends it with exit code 1.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begins the work, after what was begun before has ended.

        Raises: the error of what was begun before; then nothing is begun.
        """
        self.wait()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - it is raised by the next wait
                self._error = error

        self._thread = threading.Thread(target=run, name="accel-checkpoint")
        atexit.register(self._at_exit)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether work goes on."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Returns when nothing is left to do.

        Raises: the error of the work, once.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            atexit.unregister(self._at_exit)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _at_exit(self) -> None:
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 - nothing else is left that could say so
            traceback.print_exception(error)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
