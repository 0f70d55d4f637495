"""What a sharded model costs against the ranks of one machine: its calls, and the bytes that each rank holds."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from itertools import chain
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from scale.curve import Curve

SIZES = (2, 4, 8, 16)
#: width of a block, and blocks: half a million numbers, which 16 ranks divide equally
WIDTH, BLOCKS = 128, 4
#: repetitions, of which the first is forgotten; saves and prepare take longer than steps
ROUNDS, SAVES = 7, 4
#: seconds that a world may take
LIMIT_S = 180.0
LAYOUTS = ("ddp", "fsdp2")
HELD = ("parameters", "gradients", "optimizer state")

Numbers = dict[str, float]


def measure(*, quick: bool) -> list[Curve]:
    """Milliseconds of each call, the median of repetitions, and the megabytes that a rank holds after a step."""
    calls: dict[str, list[tuple[float, float]]] = {}
    held: dict[str, list[tuple[float, float]]] = {}
    for size in (2, 4) if quick else SIZES:
        took, bytes_held = _of_world(size, quick=quick)
        for name, seconds in took.items():
            calls.setdefault(name, []).append((size, seconds * 1e3))
        for name, number in bytes_held.items():
            held.setdefault(name, []).append((size, number / 1e6))
    return [
        Curve("sharding-calls", "Calls with half a million numbers, four cores", "ranks", "ms a call", calls),
        Curve("sharding-bytes", "What a rank holds of half a million numbers, AdamW", "ranks", "MB a rank", held),
    ]


def _of_world(size: int, *, quick: bool) -> tuple[Numbers, Numbers]:
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answer: SimpleQueue[tuple[Numbers, Numbers]] = context.SimpleQueue()
        ranks = [
            context.Process(target=_rank, args=(rank, size, quick, Path(folder), answer), daemon=True)
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


def _rank(rank: int, size: int, quick: bool, folder: Path, answer: SimpleQueue[tuple[Numbers, Numbers]]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in named.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})  # named, and not used
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size)
    took: Numbers = {}
    held: Numbers = {}
    for layout in LAYOUTS:
        calls, bytes_held = _of_layout(layout, folder, 3 if quick else ROUNDS, 2 if quick else SAVES)
        took |= calls
        held |= bytes_held
    if rank == 0:
        answer.put((took, held))
    dist.barrier()
    dist.destroy_process_group()


def _of_layout(layout: str, folder: Path, rounds: int, saves: int) -> tuple[Numbers, Numbers]:
    import torch
    from accel import Accelerator
    from accel_state import release
    from torch import nn

    accelerator = Accelerator(cpu=True, strategy=layout)
    inputs = torch.ones(8, WIDTH)

    def prepared() -> tuple[Any, Any]:
        blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(BLOCKS)]
        model = nn.Sequential(*blocks)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        return model, optimizer

    took = {f"prepare, {layout}": _median(prepared, saves)}
    accelerator.free_memory()
    model, optimizer = prepared()

    def step() -> None:
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    took[f"step, {layout}"] = _median(step, rounds)
    accelerator.backward(model(inputs).square().mean())
    took[f"clip_grad_norm_, {layout}"] = _median(lambda: accelerator.clip_grad_norm_(model.parameters(), 1.0), rounds)
    held = {f"{what}, {layout}": number for what, number in zip(HELD, _held(model, optimizer), strict=True)}
    took[f"save_state, {layout}"] = _median(lambda: accelerator.save_state(folder / layout), saves)
    accelerator.free_memory()
    release()
    return took, held


def _held(model: Any, optimizer: Any) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and states of the optimizer: of their storages, parts or not."""
    from accel_amp import local_part
    from torch import Tensor

    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = chain.from_iterable(state.values() for state in optimizer.state.values())
    kinds = (parameters, gradients, [value for value in states if isinstance(value, Tensor)])
    sizes = []
    for tensors in kinds:
        storages = [local_part(tensor).untyped_storage() for tensor in tensors]
        sizes.append(float(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())))
    return sizes[0], sizes[1], sizes[2]


def _median(call: Callable[[], Any], rounds: int) -> float:
    """Seconds of a call that all ranks begin together; the first is forgotten."""
    import torch.distributed as dist

    took = []
    for _ in range(rounds):
        gc.collect()
        dist.barrier()
        began = perf_counter()
        call()
        took.append(perf_counter() - began)
    return median(took[1:])
