"""Note the memory of a device: which tensors are there, since when, and why."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from accel_rehearse.nested_tensors import local, tensors_in
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
#: the names of modules, and of those in a row, such as layers.3 in layers.3.mlp
NAME, ROW = re.compile(".+"), re.compile(r".*?\.\d+(?=\.|$)")


@dataclass(slots=True, eq=False)
class Block:
    """A piece of memory.

    Args:
        module: Module in whose forward it was allocated.
        host: Whether it is memory of the host, until it is moved.
        size: Its bytes.
        kind: What it holds.
    """

    module: str
    host: bool = False
    size: int = 0
    kind: str = ACTIVATIONS


class Change(NamedTuple):
    """A change of the memory of the device.

    Args:
        block: What changes its size.
        more: Bytes by which it grows.
        total: Bytes that are there then.
        phase: Phase of the script.
        module: Module that the script is in, or nothing.
    """

    block: Block
    more: int
    total: int
    phase: str
    module: str


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
        self.changes = [Change(Block(""), 0, 0, SCRIPT, "")]

    def note(self, tensor: torch.Tensor, kind: str = ACTIVATIONS) -> None:
        """Take note of a tensor, if its memory is new.

        Args:
            tensor: The tensor.
            kind: What it holds. Activations are what nothing else is known of.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        block = self._blocks.get(key)
        if not block:
            early = not self._moved or kind in (PARAMETERS, BUFFERS)
            host = self._apart and early and self._stage.phase == SCRIPT
            block = self._blocks[key] = Block(self._stage.module, host)
            weakref.finalize(storage, lambda: self._change(self._blocks.pop(key), 0))
            self._change(block, storage.nbytes())
        if kind not in (ACTIVATIONS, EXCHANGE) or block.kind == ACTIVATIONS:
            block.kind = kind

    def note_all(self, tree: Any, kind: str = ACTIVATIONS) -> None:
        """Take note of all tensors of nested values.

        Args:
            tree: The values.
            kind: What they hold.
        """
        for tensor in tensors_in(tree):
            self.note(local(tensor), kind)

    def move(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note that tensors are on the device from now on."""
        self._moved = True
        for tensor in tensors:
            block = self._blocks.get(local(tensor).untyped_storage()._cdata)
            if block and block.host:
                size, block.size, block.host = block.size, 0, False
                self._change(block, size)

    def pass_by(self, size: int) -> None:
        """Take note of memory that a kernel has taken and given back."""
        block = Block(self._stage.module)
        self._change(block, size)
        self._change(block, 0)

    def resize(self, storage: torch.UntypedStorage, size: int) -> None:
        """Take note of memory that changes its size, as that of gathered weights does."""
        if block := self._blocks.get(storage._cdata):
            self._change(block, size)

    def _change(self, block: Block, size: int) -> None:
        more, block.size = size - block.size, size
        if not block.host:
            phase = EVALUATION if self._stage.evaluating else self._stage.phase
            total = self.changes[-1].total + more
            self.changes.append(Change(block, more, total, phase, self._stage.module or self._stage.handled))

    def over(self, begin: int, end: int, points: int = POINTS) -> list[dict[str, int]]:
        """Return the bytes of each kind at the highest point of each of equally many changes.

        Args:
            begin: Number of changes before the first value.
            end: Number of changes at the end.
            points: Number of values, at most.
        """
        states = [*accumulate(self.changes[:end], _changed, initial=dict.fromkeys(KINDS, 0))][begin:]
        each = -(-len(states) // points)
        return [
            max(states[first : first + each], key=lambda state: sum(state.values()))
            for first in range(0, len(states), each)
        ]

    def activations(self, end: int, names: re.Pattern[str]) -> Counter[str]:
        """Return the bytes after so many changes that were allocated in forwards, by what is found in modules' names.

        Args:
            end: Number of changes.
            names: What is looked for.
        """
        sums: Counter[str] = Counter()
        for block, more, *_ in self.changes[:end]:
            if block.kind == ACTIVATIONS and (name := names.match(block.module)):
                sums[name[0]] += more
        return +sums


def _changed(state: dict[str, int], change: Change) -> dict[str, int]:
    return {**state, change.block.kind: state[change.block.kind] + change.more}
