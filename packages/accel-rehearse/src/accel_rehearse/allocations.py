"""Note the memory of a device: which tensors are there, since when, and why."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from accel_rehearse.stage import EVALUATION, SCRIPT, Stage

PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, BATCHES, EXCHANGE, ACTIVATIONS = KINDS = (
    "parameters",
    "gradients",
    "optimizer",
    "buffers",
    "inputs",
    "exchange",
    "activations",
)
#: points of the curve of memory over a step
POINTS = 72


@dataclass(slots=True, eq=False)
class Block:
    """A piece of memory.

    Args:
        module: Module in whose forward it was allocated.
        host: Whether it is memory of the host, until it is moved.
        size: Its bytes.
        kind: What it holds.
        reference: What tells that it is freed.
    """

    module: str
    host: bool = False
    size: int = 0
    kind: str = ACTIVATIONS
    reference: Any = None


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
        #: each change of memory: the block, and the bytes that came or went
        self.changes: list[tuple[Block, int]] = []
        self.current = self.peak = self.evaluation_peak = 0
        #: where the script was at the peak
        self.peak_at = {"module": "", "phase": SCRIPT}
        self._peak_after = 0

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
            block = self._blocks[key] = Block(self._stage.module, host)
            block.reference = weakref.ref(storage, lambda _: self._change(self._blocks.pop(key), 0))
            self._change(block, storage.nbytes())
        if kind is not None and (kind != EXCHANGE or block.kind == ACTIVATIONS):
            block.kind = kind

    def note_all(self, tree: Any, kind: str | None = None) -> None:
        """Take note of all tensors of nested values.

        Args:
            tree: The values.
            kind: What they hold, if that is known.
        """
        for tensor in tensors_in(tree):
            self.note(local(tensor), kind)

    def move(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note that tensors are on the device from now on."""
        self._moved = True
        for tensor in tensors:
            block = self._blocks.get(local(tensor).untyped_storage()._cdata)
            if block is not None and block.host:
                size, block.size, block.host = block.size, 0, False
                self._change(block, size)

    def pass_by(self, size: int) -> None:
        """Take note of memory that a kernel has taken and given back."""
        block = Block(self._stage.module)
        self._change(block, size)
        self._change(block, 0)

    def _change(self, block: Block, size: int) -> None:
        more, block.size = size - block.size, size
        if block.host:
            return
        self.current += more
        self.changes.append((block, more))
        if self._stage.evaluating:
            self.evaluation_peak = max(self.evaluation_peak, self.current)
        if self.current > self.peak:
            self.peak, self._peak_after = self.current, len(self.changes)
            phase = EVALUATION if self._stage.evaluating else self._stage.phase
            self.peak_at = {
                "module": self._stage.module or block.module,
                "phase": phase,
            }

    def peak_by_kind(self) -> dict[str, int]:
        """Return the bytes of each kind at the peak."""
        return self.over(0, self._peak_after, 1)[-1]

    def over(self, begin: int, end: int, points: int = POINTS) -> list[dict[str, int]]:
        """Return the bytes of each kind at the highest point of each of equally many changes.

        Args:
            begin: Number of changes before, after which the first values are.
            end: Number of changes at the end.
            points: Number of the other values.
        """
        sums, curve = Counter(dict.fromkeys(KINDS, 0)), list[dict[str, int]]()
        marks = [begin + (end - begin) * point // points for point in range(points + 1)]
        for first, last in zip([0, *marks], marks, strict=False):
            total = highest = sums.total()
            at = dict(sums)
            for block, more in self.changes[first:last]:
                sums[block.kind] += more
                total += more
                if total >= highest or last == begin:
                    highest, at = total, dict(sums)
            curve.append(at)
        return curve

    def activations(self) -> Counter[str]:
        """Return the bytes at the peak that were allocated in the forward of each module."""
        sums = Counter[str]()
        for block, more in self.changes[: self._peak_after]:
            if block.kind == ACTIVATIONS and block.module:
                sums[block.module] += more
        return sums

    def recomputed(self) -> int:
        """Return the bytes at the peak that go if each of a row of modules is computed again in the backward."""
        rows = Counter[str]()
        for name, size in self.activations().items():
            if (numbered := re.match(r".*?\.\d+(?=\.|$)", name)) is not None:
                rows[numbered[0]] += size
        return rows.total() - max(rows.values(), default=0)

    def resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Take note of memory that changes its size, as that of gathered weights does."""
        if (block := self._blocks.get(storage._cdata)) is not None:
            self._change(block, size)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested values, faster than torch's own functions for trees do."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple | Mapping):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors_in(value)


def local(tensor: Any) -> Any:
    """Return the part of a tensor that this rank has: of a DTensor that of its own."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def distinct(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among values, each once."""
    return list({id(one): one for one in values if isinstance(one, torch.Tensor)}.values())


def bytes_of(values: Iterable[Any]) -> int:
    """Return the bytes of the tensors among values on this rank."""
    return sum(local(tensor).nbytes for tensor in distinct(values))
