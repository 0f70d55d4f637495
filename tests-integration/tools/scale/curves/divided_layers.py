"""What a step with divided layers costs against the processes that divide them, beside torch's styles by hand."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from scale.curve import Curve

SIZES = (2, 4, 8, 16)
#: repetitions, of which the first two are forgotten, and steps of each
ROUNDS, STEPS = 10, 2
WIDTH, LAYERS, ROWS = 256, 4, 256
#: seconds that a world may take
LIMIT_S = 160.0


def measure(*, quick: bool) -> list[Curve]:
    """Milliseconds of a step, the median of interleaved repetitions."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for size in (2, 4) if quick else SIZES:
        for name, seconds in _of_world(size, 3 if quick else ROUNDS).items():
            lines.setdefault(name, []).append((size, seconds * 1e3))
    return [Curve("divided-layers", "A step with divided layers", "processes", "ms a step", lines)]


def _of_world(size: int, rounds: int) -> dict[str, float]:
    launch = [sys.executable, "-m", "accel_launch", "launch", "--cpu", "-n", str(size)]
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [*launch, "-m", __name__, str(rounds)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{size} processes have no answer: {done.stderr[-2000:]}")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def _rank(rounds: int) -> None:
    import torch
    import torch.distributed as dist
    from accel import Accelerator, ParallelismConfig
    from torch import nn
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, hidden: Any) -> Any:
            return hidden + self.down(torch.tanh(self.up(self.norm(hidden))))

    plan = {"*.up": "colwise", "*.down": "rowwise"}
    size = int(os.environ["WORLD_SIZE"])
    accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_size=size, tp_plan=plan))
    mesh = accelerator.torch_device_mesh
    if mesh is None:
        raise RuntimeError("one process divides nothing")
    model = nn.Sequential(*[Block() for _ in range(LAYERS)])
    by_hand = copy.deepcopy(model)
    for block in by_hand:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    own_optimizer = torch.optim.SGD(by_hand.parameters(), lr=1e-3)
    inputs = torch.randn(ROWS, WIDTH)

    def own_step() -> None:
        by_hand(inputs).square().mean().backward()
        own_optimizer.step()
        own_optimizer.zero_grad()

    def step() -> None:
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    contestants: dict[str, Callable[[], None]] = {"torch's styles by hand": own_step, "accel": step}
    took: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, act in contestants.items():
            gc.collect()
            dist.barrier()
            began = perf_counter()
            for _ in range(STEPS):
                act()
            took[name].append((perf_counter() - began) / STEPS)
    if accelerator.is_main_process:
        print(json.dumps({name: median(times[2:]) for name, times in took.items()}))


if __name__ == "__main__":
    _rank(int(sys.argv[1]))
