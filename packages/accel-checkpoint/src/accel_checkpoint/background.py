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

from accel_checkpoint.copies import copy_all

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
        pairs = []
        for file, tensors in files.items():
            taken[file] = {}
            for name, tensor in tensors.items():
                copy = before.pop((file, name), None)
                if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
                self._kept[file, name] = taken[file][name] = copy
                pairs.append((copy, tensor.detach()))
        here = [pair for pair in pairs if pair[1].device.type == "cpu"]
        away = [pair for pair in pairs if pair[1].device.type != "cpu"]
        for copy, tensor in away:  # in the order of this thread's stream
            copy.copy_(tensor, non_blocking=tensor.device.type == "cuda")
        copy_all(here)
        for device in {tensor.device for _, tensor in away if tensor.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return taken


@final
class Background:
    """One piece of work at a time, in a thread; its error is raised by the next `wait`.

    Work that was begun is finished before the process ends; one that fails then is said, and ends it with exit code 1.
    """

    def __init__(self) -> None:
        # not the thread's own word: one whose join was interrupted counts as ended in Python before 3.13
        self._idle = threading.Event()
        self._idle.set()
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
            finally:
                self._idle.set()

        self._idle.clear()
        atexit.register(self._at_exit)
        try:
            threading.Thread(target=run, name="accel-checkpoint").start()
        except RuntimeError:  # the system has no more threads
            self._idle.set()
            atexit.unregister(self._at_exit)
            raise

    @property
    def busy(self) -> bool:
        """Whether work goes on."""
        return not self._idle.is_set()

    def wait(self) -> None:
        """Returns when nothing is left to do.

        Raises: the error of the work, once.
        """
        self._idle.wait()
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
