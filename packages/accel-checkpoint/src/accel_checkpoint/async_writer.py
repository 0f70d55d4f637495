"""Writes checkpoints while training goes on: from a copy in memory, in one thread."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import final

import torch

from accel_checkpoint.parallel_copy import parallel_copy

Files = Mapping[str, Mapping[str, torch.Tensor]]


@final
class Snapshot:
    """Copies tensors into memory of the CPU, and uses the same memory for the next copies."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], torch.Tensor] = {}

    def take(self, files: Files) -> dict[str, dict[str, torch.Tensor]]:
        """Copies of the tensors as they are now, which nothing changes until the next call."""
        earlier, self._copies = self._copies, {}
        snapshot: dict[str, dict[str, torch.Tensor]] = {}
        pairs = []
        for file, tensors in files.items():
            snapshot[file] = {}
            for name, tensor in tensors.items():
                copy = earlier.pop((file, name), None)
                if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
                self._copies[file, name] = snapshot[file][name] = copy
                pairs.append((copy, tensor.detach()))
        for copy, tensor in pairs:  # in the order of this thread's stream
            if not tensor.is_cpu:
                copy.copy_(tensor, non_blocking=tensor.is_cuda)
        parallel_copy((copy, tensor) for copy, tensor in pairs if tensor.is_cpu)
        for device in {tensor.device for _, tensor in pairs if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return snapshot


@final
class AsyncWriter:
    """Runs one write at a time in a thread, and raises its error at the next `wait`.

    A process that ends waits for the write. If the write fails then, its traceback is printed and the exit code is 1.
    """

    def __init__(self) -> None:
        # an event, and not `Thread.join`: before Python 3.13 a thread counts as ended if its join was interrupted
        self._idle = threading.Event()
        self._idle.set()
        self._error: Exception | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Waits for the write before, and begins this write.

        Raises: the error of the write before; then this write does not begin.
        """
        self.wait()

        def run() -> None:
            try:
                write()
            except Exception as error:  # noqa: BLE001 - the next wait raises it
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
        """Whether a write goes on."""
        return not self._idle.is_set()

    def wait(self) -> None:
        """Returns when no write goes on.

        Raises: the error of the write, once.
        """
        self._idle.wait()
        atexit.unregister(self._at_exit)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _at_exit(self) -> None:
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 - no caller is left who could be told
            traceback.print_exception(error)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
