"""Ranks that are threads of one process, and exchange tensors by memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Barrier
from typing import Any, TypeVar

import torch
from accel_sequence.division import Ranks
from accel_sequence.layout import SequenceLayout
from accel_sequence.peers import SequencePeers, Wait

T = TypeVar("T")
LIMIT_S = 30


class Board:
    """What the ranks of a group have in common; it counts the elements that each rank sends."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size, timeout=LIMIT_S)
        self.rows: list[Any] = [None] * size
        self.queues: dict[tuple[int, int], Queue[torch.Tensor]] = {
            (rank, tag): Queue() for rank in range(size) for tag in range(4)
        }
        self.sent = [0] * size


class SimulatedPeers(SequencePeers):
    """A rank of a group of threads."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self.rank, self.size = board, rank, board.size

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        assert x.is_contiguous()
        self._board.rows[self.rank] = x.clone()
        self._board.barrier.wait()
        rows = list(self._board.rows)
        self._board.barrier.wait()
        return rows

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        self._board.sent[self.rank] += x.numel() * (self.size - 1) // self.size
        return torch.stack([row[self.rank] for row in self._exchange(x)])

    def shift(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> Wait:
        for index, x in enumerate(tensors, tag):
            assert x.is_contiguous()
            self._board.sent[self.rank] += x.numel()
            self._board.queues[(self.rank + 1) % self.size, index].put(x.clone())
        tags = range(tag, tag + len(tensors))
        return lambda: [self._board.queues[self.rank, index].get(timeout=LIMIT_S) for index in tags]

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self._board.sent[self.rank] += 2 * x.numel()
        return torch.stack(self._exchange(x.contiguous())).sum(0)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self._board.sent[self.rank] += x.numel() * (self.size - 1)
        return torch.stack(self._exchange(x.contiguous()))


def simulate(layout: SequenceLayout, job: Callable[[Ranks], T]) -> tuple[list[T], dict[str, Board]]:
    """The results of a job on each rank that shares sequences, and what all and the groups of rank 0 have exchanged."""
    everyone = Board(layout.size)
    of_heads = [Board(layout.heads) for _ in range(layout.ring)]
    of_ring = [Board(layout.ring) for _ in range(layout.heads)]

    def on(rank: int) -> T:
        place, head = divmod(rank, layout.heads)
        heads = SimulatedPeers(of_heads[place], head) if layout.heads > 1 else None
        ring = SimulatedPeers(of_ring[head], place) if layout.ring > 1 else None
        return job(Ranks(layout, SimulatedPeers(everyone, rank), heads, ring))

    with ThreadPoolExecutor(layout.size) as pool:
        waiting = [pool.submit(on, rank) for rank in range(layout.size)]
        return [one.result(timeout=LIMIT_S) for one in waiting], {
            "all": everyone,
            "heads": of_heads[0],
            "ring": of_ring[0],
        }
