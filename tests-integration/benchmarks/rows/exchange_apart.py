"""Time of one exchange between processes that share no memory, as those of several machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any

import accel_ops
import torch
import torch.distributed as dist
from accel_comm import call_site
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


#: what an agreement by `all_reduce` may cost, in what accel's costs, before it is no simplification that accel can take
WORTH = 1.2


def _fingerprint(what: str, about: bytes) -> torch.Tensor:
    """Numbers that are equal on ranks that make the same call, about the same data, from the same line."""
    digests = b"".join(blake2b(text, digest_size=8).digest() for text in (what.encode(), call_site().encode()))
    words = torch.frombuffer(bytearray(digests + about), dtype=torch.int64)
    return torch.cat([words, ~words])  # the largest of the second half has the bits of the smallest of the first


def _by_all_reduce(about: bytes) -> None:
    numbers = _fingerprint("wait_for_everyone", about)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    largest, smallest = numbers[: len(numbers) // 2], ~numbers[len(numbers) // 2 :]
    if not largest.equal(smallest):
        raise RuntimeError("the ranks make different calls, so this is no comparison")


def _agreement() -> Lineup:
    transport, about = TorchDist(), b"digest of 16 byt"

    def agree() -> None:
        if transport.agree("wait_for_everyone", about) is None:
            raise RuntimeError("the ranks have different data, so this is no comparison")

    calls: dict[str, Callable[[], Any]] = {"raw": partial(_by_all_reduce, about), "accel": agree}
    return Lineup.of({name: partial(_timed, call) for name, call in calls.items()})


_SUM = partial(accel_ops.reduce, how="sum")

ROWS = tuple(
    Row(
        f"agreement, tree beside all_reduce of a fingerprint, without shared memory, world {world}",
        _agreement,
        1 / WORTH,
        world=world,
        least=15,
    )
    for world in (2, 8, 32)
) + tuple(
    Row(f"exchange, {what} without shared memory, world {world}", partial(_lineup, *how), target, world=world, least=7)
    for world in (2, 16, 32)
    for what, how, target in (
        ("reduce of 1 number", (raw.reduce, 1, _SUM), 2.0),
        ("gather of 1 small tensor", (raw.gather, 32, accel_ops.gather), 1.3),
    )
)
