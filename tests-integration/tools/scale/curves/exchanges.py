"""What an exchange costs against the number of processes of one machine, beside gloo's own calls."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from scale.curve import Curve

SIZES = (2, 4, 8, 16, 32)
#: repetitions, of which the first is forgotten, and calls of each
ROUNDS, CALLS = 9, 5
#: seconds that a world may take
LIMIT_S = 120.0
OPERATIONS = {"reduce": "reduce of one float", "gather": "gather of 32 floats"}

Took = dict[str, float]


def measure(*, quick: bool) -> list[Curve]:
    """Milliseconds of a call, the median of interleaved repetitions, for each operation."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {one: {} for one in OPERATIONS}
    for size in (2, 4) if quick else SIZES:
        for operation, took in _of_world(size, 3 if quick else ROUNDS).items():
            for name, seconds in took.items():
                lines[operation].setdefault(name, []).append((size, seconds * 1e3))
    return [
        Curve(f"exchange-{one}", f"{title}, four cores", "processes", "ms a call", lines[one])
        for one, title in OPERATIONS.items()
    ]


def _of_world(size: int, rounds: int) -> dict[str, Took]:
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answer: SimpleQueue[dict[str, Took]] = context.SimpleQueue()
        ranks = [
            context.Process(target=_rank, args=(rank, size, rounds, Path(folder) / "store", answer), daemon=True)
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        try:
            ranks[0].join(LIMIT_S)
            if ranks[0].exitcode != 0:
                raise RuntimeError(f"rank 0 of {size} has no answer: exit code {ranks[0].exitcode}")
            return answer.get()
        finally:
            for process in ranks:
                process.join(10)
                if process.is_alive():
                    process.kill()
                    process.join()


def _rank(rank: int, size: int, rounds: int, store: Path, answer: SimpleQueue[dict[str, Took]]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in named.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})  # named, and not used
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found = {one: _medians(_contestants(one), rounds) for one in OPERATIONS}
    if rank == 0:
        answer.put(found)
    dist.barrier()
    dist.destroy_process_group()


def _contestants(operation: str) -> dict[str, Callable[[], Any]]:
    import accel_ops
    import torch
    import torch.distributed as dist
    from accel import Accelerator
    from accel_comm.transports.torch_dist import TorchDist
    from accel_state import current

    number, numbers = torch.ones(1), torch.randn(32)
    joined = numbers.new_empty(32 * dist.get_world_size())
    names = vars(dist)  # renamed in torch 2.13, where the old name warns
    gathering = names.get("all_gather_single") or names["all_gather_into_tensor"]
    Accelerator(cpu=True)
    shared, apart = current().transport, TorchDist()  # what knows no status store has no shared memory
    if operation == "reduce":
        return {
            "gloo": lambda: dist.all_reduce(number.clone()),
            "accel, as between machines": lambda: accel_ops.reduce(number, apart, how="sum"),
            "accel, through shared memory": lambda: accel_ops.reduce(number, shared, how="sum"),
        }
    return {
        "gloo": lambda: gathering(joined, numbers),
        "accel, as between machines": lambda: accel_ops.gather(numbers, apart),
        "accel, through shared memory": lambda: accel_ops.gather(numbers, shared),
    }


def _medians(contestants: dict[str, Callable[[], Any]], rounds: int) -> Took:
    import torch.distributed as dist

    took: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            gc.collect()
            dist.barrier()
            began = perf_counter()
            for _ in range(CALLS):
                call()
            took[name].append((perf_counter() - began) / CALLS)
    return {name: median(some[1:]) for name, some in took.items()}
