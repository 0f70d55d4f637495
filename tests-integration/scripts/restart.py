"""A job that trains, saves and stops when it is asked to: start it again after any end, and it goes on.

restart.py PLAN-AS-JSON
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 101
EPOCHS = 2
BATCH = 8


@dataclass(frozen=True)
class Plan:
    """What becomes of one life of the job; `killed` is a rank, a step, and whether it dies when the step is saved."""

    folder: str
    precision: str = "no"
    every: int = 3
    epochs: int = EPOCHS
    workers: int = 2
    killed: tuple[int, int, bool] | None = None
    asks: bool = False
    pause_s: float = 0.0
    signals: tuple[str, ...] = ()


class Count:
    """What a script registers."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


@dataclass(frozen=True)
class Result:
    """How a life ended: where it began, and a hash of all that it could go on from; the losses of its steps."""

    began: int
    steps: int
    digest: str
    losses: list[float]


def digest(*values: Any) -> str:
    """A hash of tensors and numbers, however nested."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(value.detach().cpu().numpy().tobytes())
        elif isinstance(value, dict):
            for key, one in value.items():
                found.update(str(key).encode())
                add(one)
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    add(values)
    return found.hexdigest()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def train(plan: Plan) -> Result:
    folder = Path(plan.folder)
    project = ProjectConfiguration(
        folder, automatic_checkpoint_naming=True, total_limit=2, stop_signals=tuple(plan.signals)
    )
    accelerator = Accelerator(cpu=True, mixed_precision=plan.precision, project_config=project)
    rank = accelerator.process_index
    torch.manual_seed(rank)
    random.seed(rank)
    numpy.random.seed(rank)
    data = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 8, generator=data)
    targets = torch.randint(0, 3, (SAMPLES,), generator=data)
    model: Any = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 3))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    size = BATCH // accelerator.num_processes
    loader: Any = DataLoader(TensorDataset(inputs, targets), size, shuffle=True, num_workers=plan.workers)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    count = Count()
    accelerator.register_for_checkpointing(count)
    try:
        accelerator.load_state()
    except CheckpointError as error:
        if "there is no whole checkpoint" not in str(error):
            raise
    began, losses = count.steps, []
    for _ in range(loader.iteration, plan.epochs):
        for xs, ys in loader:
            loss = nn.functional.cross_entropy(model(xs), ys)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            count.steps += 1
            losses.append(loss.item())
            dies = plan.killed is not None and plan.killed[:2] == (rank, count.steps)
            if dies and plan.killed is not None and not plan.killed[2]:
                die()
            if count.steps % plan.every == 0:
                accelerator.save_state(asynchronous=count.steps // plan.every % 2 == 0)
            if dies:
                die()
            (folder / f"at-{rank}").write_text(str(count.steps))
            time.sleep(plan.pause_s)
            if plan.asks and accelerator.stop_requested():
                (folder / f"stopped-{rank}").write_text(str(count.steps))
                accelerator.save_and_stop()
    accelerator.end_training()
    scale = accelerator.scaler.state_dict() if accelerator.scaler is not None else None
    draws = torch.rand(3), random.random(), numpy.random.rand()
    state = model.state_dict(), optimizer.state_dict(), schedule.state_dict(), scale
    return Result(began, count.steps, digest(*state, *draws), losses)


def main() -> None:
    told = json.loads(sys.argv[1])
    plan = Plan(**{**told, "killed": tuple(told["killed"]) if told.get("killed") else None})
    result = train(plan)
    rank = os.environ.get("RANK", "0")
    (Path(plan.folder) / f"done-{rank}").write_text(json.dumps([result.steps, result.digest]))


if __name__ == "__main__":
    main()
