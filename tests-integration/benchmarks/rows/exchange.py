"""Time of one exchange between two processes: gather, reduce, broadcast, objects, and gather_for_metrics in a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.exchanges import raw
from benchmarks.exchanges.libraries import accelerator, exchange
from benchmarks.row import Lineup, Repetition, Row

WORLD = 2
#: numbers of a small tensor, and of one of 16 MB
SMALL, LARGE = 32, 4 * 2**20
#: exchanges of a repetition: small ones, and those of 16 MB
CALLS, CALLS_LARGE = 200, 4
BATCH_SIZE, BATCHES, CALLS_A_BATCH = 32, 8, 25
#: samples of the last batches of both ranks: what comes after them was repeated
REST = 40

Exchange = Callable[[Any], Any]
Pair = tuple[torch.Tensor, torch.Tensor]


def tensor(numbers: int) -> torch.Tensor:
    """A tensor that is another one on each rank."""
    return torch.randn(numbers, generator=torch.Generator().manual_seed(dist.get_rank()))


def tensors(count: int) -> dict[str, torch.Tensor]:
    """Small tensors by name, other ones on each rank."""
    return {f"tensor {number}": tensor(SMALL) + number for number in range(count)}


def middling() -> dict[str, torch.Tensor]:
    """64 tensors of 1 to 2 KB, which are too many for the first message, and each too small for one of its own."""
    return {f"tensor {number}": tensor(256 + 4 * number) for number in range(64)}


def texts() -> list[str]:
    """A short list, another one on each rank."""
    return [f"text {number} of rank {dist.get_rank()}" for number in range(4)]


def same(one: Any, other: Any) -> bool:
    """Whether nested data is equal, tensors number by number."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _lineup(operation: str, by_hand: Exchange, make: Callable[[], Any], calls: int) -> Lineup:
    def timed(does: Exchange) -> Repetition:
        _require_same(does(make()), by_hand(make()), operation)
        data = make()

        def repeat() -> float:
            began = perf_counter()
            for _ in range(calls):
                does(data)
            dist.barrier()  # who only sends is not done before others have it
            return (perf_counter() - began) / calls

        return repeat

    return Lineup.of(
        {
            "raw": lambda: timed(by_hand),
            "accel": lambda: timed(exchange("accel", operation)),
            "accelerate": lambda: timed(exchange("accelerate", operation)),
        }
    )


def _require_same(found: Any, expected: Any, operation: str) -> None:
    if not same(found, expected):
        raise RuntimeError(f"{operation}: by hand something else comes out, so this is no comparison")


def _metrics_lineup() -> Lineup:
    size = BATCH_SIZE * WORLD * (BATCHES - 1) + REST
    data = TensorDataset(torch.arange(size) / 7, torch.arange(size))

    def by_hand() -> Repetition:
        mine = range(dist.get_rank(), WORLD * BATCHES, WORLD)
        rows = [(number * BATCH_SIZE + torch.arange(BATCH_SIZE)) % size for number in mine]
        batches = [(data.tensors[0][one], data.tensors[1][one]) for one in rows]

        def gathered(batch: Pair, last: bool) -> Pair:
            predictions, targets = raw.gather(batch[0]), raw.gather(batch[1])
            return (predictions[:REST], targets[:REST]) if last else (predictions, targets)

        return _evaluation(batches, gathered, data)

    def by(library: str) -> Repetition:
        owner = accelerator(library)
        loader = owner.prepare(DataLoader(data, BATCH_SIZE))
        return _evaluation(loader, lambda batch, _: owner.gather_for_metrics(tuple(batch)), data)

    return Lineup.of({"raw": by_hand, "accel": lambda: by("accel"), "accelerate": lambda: by("accelerate")})


def _evaluation(batches: Iterable[Any], gathered: Callable[[Any, bool], Any], data: TensorDataset) -> Repetition:
    """Seconds of a call, of which there are many for each batch, so that the loader does not count."""
    found = [gathered(batch, number == BATCHES) for number, batch in enumerate(batches, start=1)]
    _require_same([torch.cat(column) for column in zip(*found, strict=True)], list(data.tensors), "gather_for_metrics")

    def repeat() -> float:
        took = 0.0
        for number, batch in enumerate(batches, start=1):
            dist.barrier()
            began = perf_counter()
            for _ in range(CALLS_A_BATCH):
                gathered(batch, number == BATCHES)
            took += perf_counter() - began
        return took / (BATCHES * CALLS_A_BATCH)

    return repeat


def _row(
    what: str,
    operation: str,
    by_hand: Exchange,
    make: Callable[[], Any],
    target: float = 1.0,
    *,
    against: str = "accelerate",
    calls: int = CALLS,
) -> Row:
    build = partial(_lineup, operation, by_hand, make, calls)
    return Row(f"exchange, {what}, world {WORLD}", build, target, world=WORLD, against=against)


_SMALL, _LARGE = partial(tensor, SMALL), partial(tensor, LARGE)

ROWS = (
    _row("gather of 64 small tensors", "gather", raw.gather_all, partial(tensors, 64), 0.15),
    _row("gather of 8 small tensors", "gather", raw.gather_all, partial(tensors, 8), 0.35),
    _row("gather of 1 small tensor", "gather", raw.gather, _SMALL),
    _row("gather of 16 MB", "gather", raw.gather, _LARGE, 1.1, against="raw", calls=CALLS_LARGE),
    Row(
        f"exchange, gather_for_metrics of a pair, world {WORLD}",
        _metrics_lineup,
        1.0,
        world=WORLD,
        against="accelerate",
    ),
    _row("reduce of 8 small tensors", "reduce", raw.reduce_all, partial(tensors, 8)),
    _row("reduce of 1 small tensor", "reduce", raw.reduce, _SMALL),
    _row("reduce of 16 MB", "reduce", raw.reduce, _LARGE, calls=CALLS_LARGE),
    _row("broadcast of 8 small tensors", "broadcast", raw.broadcast_all, partial(tensors, 8)),
    _row("broadcast of 1 small tensor", "broadcast", raw.broadcast, _SMALL),
    _row("gather of 64 tensors of 1-2 KB", "gather", raw.gather_all, middling, 1.5, against="raw", calls=20),
    _row("reduce of 64 tensors of 1-2 KB", "reduce", raw.reduce_all, middling, 1.5, against="raw", calls=20),
    _row("broadcast of 16 MB", "broadcast", raw.broadcast, _LARGE, 1.1, against="raw", calls=CALLS_LARGE),
    _row("gather_object of 4 texts", "gather_object", raw.gather_object, texts),
    _row("broadcast_object_list of 4 texts", "broadcast_object_list", raw.broadcast_object_list, texts),
)
