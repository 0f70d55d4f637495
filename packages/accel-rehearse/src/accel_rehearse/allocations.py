"""Note the memory of a device: which tensors are there, since when, and why."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_iter

from accel_rehearse.stage import EVALUATION, SCRIPT, Stage

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, BATCHES, EXCHANGE, ACTIVATIONS = (
    "parameters",
    "gradients",
    "optimizer",
    "buffers",
    "batches",
    "exchange",
    "activations",
)
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, BATCHES, EXCHANGE, ACTIVATIONS)


@dataclass(slots=True, eq=False)
class Block:
    """A piece of memory.

    Args:
        size: Its bytes.
        module: Module in whose forward it was allocated.
        phase: Phase in which it was allocated.
        kind: What it holds.
        host: Whether it is memory of the host, until it is moved.
        reference: What tells that it is freed.
    """

    size: int
    module: str
    phase: str
    kind: str = ACTIVATIONS
    host: bool = False
    reference: Any = field(default=None, repr=False)


class Allocations:
    """The memory that tensors take on the device, from the first to the last.

    Args:
        stage: Where the script stands.
        apart: Whether the device has memory of its own, and models are made on the host.
    """

    def __init__(self, stage: Stage, *, apart: bool) -> None:
        self._stage, self._apart = stage, apart
        # whether anything was put on the device by now
        self._moved = False
        self._blocks: dict[int, Block] = {}
        #: each change of memory: the block, and its bytes before and after
        self.changes: list[tuple[Block, int, int]] = []
        self.current = self.peak = self.evaluation_peak = 0
        #: number of changes until the peak, and where the script was
        self._peak_after, self._peak_at = 0, ("", "")

    def note(self, tensor: torch.Tensor, kind: str | None = None) -> None:
        """Take note of a tensor, if its memory is new.

        Args:
            tensor: The tensor.
            kind: What it holds, if that is known.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        block = self._blocks.get(key)
        if block is None:
            made = self._apart and self._stage.phase == SCRIPT and not self._stage.depth
            host = made and (not self._moved or kind in (PARAMETERS, BUFFERS))
            block = self._blocks[key] = Block(0, self._stage.module, self._phase, host=host)
            block.reference = weakref.ref(storage, lambda _: self._change(self._blocks.pop(key), 0))
            self._change(block, storage.nbytes())
        if kind is not None:
            block.kind = kind

    def move(self, tensors: Iterable[Any]) -> None:
        """Take note that tensors are on the device from now on."""
        self._moved = True
        for tensor in local_tensors(tensors):
            block = self._blocks.get(tensor.untyped_storage()._cdata)
            if block is not None and block.host:
                size, block.size, block.host = block.size, 0, False
                self._change(block, size)

    def note_all(self, tree: Any, kind: str) -> None:
        """Take note of all tensors of nested values, as of one kind."""
        for tensor in local_tensors(tree_iter(tree)):
            self.note(tensor, kind)

    @property
    def _phase(self) -> str:
        return EVALUATION if self._stage.evaluating else self._stage.phase

    def _change(self, block: Block, size: int) -> None:
        before, block.size = block.size, size
        if block.host:
            return
        self.current += size - before
        self.changes.append((block, before, size))
        if self._stage.evaluating:
            self.evaluation_peak = max(self.evaluation_peak, self.current)
        if self.current > self.peak:
            self.peak, self._peak_after = self.current, len(self.changes)
            self._peak_at = self._stage.module or block.module, self._phase

    @property
    def peak_at(self) -> dict[str, str]:
        """The module and the phase of the peak."""
        return dict(zip(("module", "phase"), self._peak_at, strict=True))

    def peak_by_kind(self) -> dict[str, int]:
        """Return the bytes of each kind at the peak."""
        return self._sums(lambda block: block.kind, KINDS)

    def largest_modules(self, count: int) -> dict[str, int]:
        """Return the bytes at the peak that were allocated in the forward of each module, the largest first."""
        sums = self._sums(lambda block: block.module if block.kind == ACTIVATIONS else "", ())
        sums.pop("", None)
        return dict(sorted(sums.items(), key=lambda item: -item[1])[:count])

    def _sums(self, key: Any, keys: Iterable[str]) -> dict[str, int]:
        sums = Counter(dict.fromkeys(keys, 0))
        for block, before, after in self.changes[: self._peak_after]:
            sums[key(block)] += after - before
        return dict(sums)

    @contextmanager
    def watching_resizes(self) -> Iterator[None]:
        """Take note inside the block of memory that changes its size, as that of gathered weights does."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            block = self._blocks.get(storage._cdata)
            if block is not None:
                self._change(block, size)
            return result

        with patch.object(torch.UntypedStorage, "resize_", resized):
            yield


def local_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, of a DTensor the part of this rank."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value._local_tensor if hasattr(value, "_local_tensor") else value


def bytes_of(tensors: Iterable[Any]) -> int:
    """Return the bytes of different tensors on this rank."""
    return sum(one.nbytes for one in {id(one): one for one in local_tensors(tensors)}.values())
