"""Which tensors a finished collective still holds: those that it may, and none that another wait looks at."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports import collective_work
from accel_comm.transports.collective_work import KEPT, CollectiveWork
from accel_comm.transports.peer_errors import PeerErrors

RANKS = 3


class Work:
    """A collective of torch, which holds its tensors as long as it lives."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors

    def wait(self) -> None:
        """Return at once."""

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(one.nbytes for given in self.tensors for one in (given if isinstance(given, list) else [given]))


def gather(mine: torch.Tensor, rows: list[torch.Tensor] | None, root: int, *, async_op: bool) -> Work:
    """Stands in for torch's: rank r sends what rank 0 sends, plus r."""
    for rank, row in enumerate(rows or []):
        row.copy_(mine + rank)
    return Work(mine, rows)


@pytest.mark.parametrize("length", [10, KEPT // RANKS + 1, KEPT + 1])
def test_rows_that_rank_0_gathers_are_let_go_of_without_a_wait(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rows were views of one tensor, a kept collective would hold it, until the limit of a wait."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: math.inf if waits else 0.0, sleep=waits.append)
    monkeypatch.setattr(collective_work, "time", clock)
    monkeypatch.setattr(dist, "gather", gather)
    work = CollectiveWork(0, RANKS, FlightRecorder(), cast(PeerErrors, SimpleNamespace(translated=nullcontext)))
    rows = work.gather(bytes(length), 0)
    assert [row.tolist() for row in rows] == [[rank] * length for rank in range(RANKS)]
    assert waits == []
    assert all(kept.nbytes <= KEPT for kept in work._finished)
