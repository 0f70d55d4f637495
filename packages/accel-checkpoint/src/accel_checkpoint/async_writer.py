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

from accel_checkpoint.memory.pinned_memory import empty_pinned_like, synchronize
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
            copies: dict[str, torch.Tensor] = {}
            for name, tensor in tensors.items():
                copy = earlier.pop((file, name), None)
                if copy is not None and copy.shape == tensor.shape and copy.dtype == tensor.dtype:
                    copies[name] = copy
            copies |= _empty_copies({name: tensor for name, tensor in tensors.items() if name not in copies})
            snapshot[file] = {name: copies[name] for name in tensors}
            self._copies |= {(file, name): copy for name, copy in snapshot[file].items()}
            pairs += [(snapshot[file][name], tensor.detach()) for name, tensor in tensors.items()]
        sources = [tensor for _, tensor in pairs]
        synchronize(sources)  # another stream may still write into them
        for copy, tensor in pairs:
            if not tensor.is_cpu:
                copy.copy_(tensor, non_blocking=tensor.is_cuda)
        parallel_copy((copy, tensor) for copy, tensor in pairs if tensor.is_cpu)
        synchronize(sources)
        return snapshot


def _empty_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Memory of the CPU for each tensor: for those of GPUs in few pinned buffers, as each allocation stops the GPU."""
    on_gpu = [name for name, tensor in tensors.items() if tensor.is_cuda]
    pinned = zip(on_gpu, empty_pinned_like([tensors[name] for name in on_gpu]), strict=True)
    others = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        for name, tensor in tensors.items()
        if not tensor.is_cuda
    }
    return others | dict(pinned)


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
