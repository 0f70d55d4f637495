"""Time of one exchange between processes that share no memory, as those of several machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import accel_ops
import torch
import torch.distributed as dist
from accel_comm.transports.torch_dist import TorchDist

from benchmarks.exchanges import raw
from benchmarks.row import Lineup, Repetition, Row
from benchmarks.rows.exchange import Exchange, tensor

#: exchanges of a repetition
CALLS = 5


def _lineup(by_hand: Exchange, numbers: int, does: Callable[[Any, TorchDist], Any]) -> Lineup:
    transport, data = TorchDist(), tensor(numbers)  # it knows no status store, and so no memory that it could share
    if not torch.allclose(does(data, transport), by_hand(data)):
        raise RuntimeError("by hand something else comes out, so this is no comparison")
    calls: dict[str, Callable[[], Any]] = {"raw": lambda: by_hand(data), "accel": lambda: does(data, transport)}
    return Lineup.of({name: partial(_timed, call) for name, call in calls.items()})


def _timed(call: Callable[[], Any]) -> Repetition:
    def repeat() -> float:
        began = perf_counter()
        for _ in range(CALLS):
            call()
        dist.barrier()
        return (perf_counter() - began) / CALLS

    return repeat


_SUM = partial(accel_ops.reduce, how="sum")

ROWS = tuple(
    Row(f"exchange, {what} without shared memory, world {world}", partial(_lineup, *how), target, world=world, least=7)
    for world in (2, 16, 32)
    for what, how, target in (
        ("reduce of 1 number", (raw.reduce, 1, _SUM), 2.0),
        ("gather of 1 small tensor", (raw.gather, 32, accel_ops.gather), 1.3),
    )
)
