"""Write checkpoints while training goes on, from a copy in memory, in a thread."""

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
#: the names of a file and of a tensor in it
_Key = tuple[str, str]


@final
class Snapshot:
    """A copier of tensors into CPU memory, which uses the same memory for the next copies."""

    def __init__(self) -> None:
        self._copies: dict[_Key, torch.Tensor] = {}

    def take(self, files: Files) -> dict[str, dict[str, torch.Tensor]]:
        """Copy tensors as they are now.

        Args:
            files: Tensors by name, by the file that they belong to.

        Returns:
            The copies, by the same names. Nothing changes them until the next call.
        """
        flat = {(file, name): tensor.detach() for file, tensors in files.items() for name, tensor in tensors.items()}
        # the memory that cannot be used again is free before other memory is taken
        self._copies = {
            key: copy
            for key, copy in self._copies.items()
            if key in flat and copy.shape == flat[key].shape and copy.dtype == flat[key].dtype
        }
        self._copies |= _empty_copies({key: tensor for key, tensor in flat.items() if key not in self._copies})
        pairs = [(self._copies[key], tensor) for key, tensor in flat.items()]
        synchronize(flat.values())  # another stream may still write into them
        for copy, tensor in pairs:
            if not tensor.is_cpu:
                copy.copy_(tensor, non_blocking=tensor.is_cuda)
        parallel_copy((copy, tensor) for copy, tensor in pairs if tensor.is_cpu)
        synchronize(flat.values())
        return {file: {name: self._copies[file, name] for name in tensors} for file, tensors in files.items()}


def _empty_copies(tensors: Mapping[_Key, torch.Tensor]) -> dict[_Key, torch.Tensor]:
    """Return CPU memory for each tensor: for those of GPUs in few pinned buffers, as each allocation stops the GPU."""
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
    """A writer that runs one write at a time in a thread, and raises its error at the next `begin` or `wait`.

    A process that ends waits for the write. If an error was not raised until then, its traceback is printed and the
    exit code is 1.

    Args:
        on_error: Function that takes the error of a write in the thread. Then no later call raises the error.
    """

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        self._on_error = on_error
        # an event, and not `Thread.join`: before Python 3.13 a thread counts as ended if its join was interrupted
        self._idle = threading.Event()
        self._idle.set()
        self._error: Exception | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Wait for the previous write, and begin this write in a thread of its own.

        Args:
            write: Function that writes. It is called in the thread.

        Raises:
            Exception: The error of the previous write. Then this write does not begin.
            RuntimeError: The system has no more threads.
        """
        self.wait()

        def run() -> None:
            try:
                write()
            except Exception as error:  # noqa: BLE001 - the next wait raises it
                if self._on_error is not None:
                    self._on_error(error)
                else:
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
        """True while a write is running."""
        return not self._idle.is_set()

    def wait(self) -> None:
        """Wait until no write is running.

        Raises:
            Exception: The error of the last write, if no call has raised it before.
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
