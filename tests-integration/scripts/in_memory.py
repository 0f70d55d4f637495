"""A job that trains, resumes, and keeps checkpoints in memory; a rank of it is killed once in each of the first starts.

in_memory.py PLAN-AS-JSON
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import DataLoaderConfiguration, ProjectConfiguration
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.hidden_folder import list_hidden_folders
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, EPOCHS = 96, 8, 3
STEPS = EPOCHS * SAMPLES // BATCH


@dataclass(frozen=True)
class Plan:
    """What becomes of a job.

    `deaths` has for each start a rank, a step, and when in the step it is killed: "forward", "backward", "end", or
    "write", while a checkpoint of a later step is written.
    """

    folder: str
    deaths: list[list[Any]]
    strategy: str = "ddp"
    double: bool = False
    pause_s: float = 0.0
    saves_at: int = 0
    every: int | str | None = None


class Counter:
    """What a script registers."""

    steps = epochs = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps, self.epochs = state["steps"], state["epochs"]


def die() -> None:
    """Be killed, once what is written behind has its name: how long that takes is no matter of a test."""
    until = time.monotonic() + 20
    for parent in Path(os.environ.get("ACCEL_MEMORY_CHECKPOINTS", "/nonexistent")).glob("*/checkpoints"):
        while list_hidden_folders(parent) and time.monotonic() < until:
            time.sleep(0.01)
    kill()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def die_in_writes() -> None:
    """Be killed when the next checkpoint is written behind."""
    write = Filesystem.write

    def half(self: Filesystem, path: Path, content: Any) -> Any:
        if path.name.startswith("model"):
            kill()
        return write(self, path, content)

    Filesystem.write = half  # type: ignore[method-assign]


def train(plan: Plan) -> dict[str, Any]:
    folder = Path(plan.folder)
    torch.set_default_dtype(torch.float64 if plan.double else torch.float32)
    accelerator = Accelerator(
        cpu=True,
        strategy=plan.strategy,
        split_batches=True,
        project_config=ProjectConfiguration(
            folder, automatic_checkpoint_naming=True, memory_checkpoint_every=plan.every
        ),
        dataloader_config=DataLoaderConfiguration(consumption_log=folder / "consumed"),
    )
    attempt, rank = int(os.environ.get("ACCEL_ATTEMPT", "0")), accelerator.process_index
    death = plan.deaths[attempt] if attempt < len(plan.deaths) else None
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 8)
    model: Any = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.0 if plan.double else 0.3), nn.Tanh(), nn.Linear(32, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader: Any = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    schedule.optimizer = optimizer.optimizer
    count = Counter()
    accelerator.register_for_checkpointing(count, schedule=schedule)
    accelerator.resume()
    began = count.steps
    for _ in range(loader.iteration, EPOCHS):
        for xs, ys in loader:
            at = death is not None and death[:2] == [rank, count.steps + 1]
            if at and death is not None and death[2] == "write":
                die_in_writes()
            loss = nn.functional.mse_loss(model(xs), ys)
            if at and death is not None and death[2] == "forward":
                die()
            accelerator.backward(loss)
            if at and death is not None and death[2] == "backward":
                die()
            optimizer.step()
            optimizer.zero_grad()
            count.steps += 1
            if at and death is not None and death[2] == "end":
                die()
            if count.steps == plan.saves_at:
                accelerator.save_state()
            time.sleep(plan.pause_s)
            (folder / f"at-{rank}").write_text(f"{count.steps} {time.time()}")
        schedule.step()
        count.epochs += 1
    weights = accelerator.get_state_dict(model)
    accelerator.end_training()
    listed = {name: value.flatten().tolist() for name, value in weights.items()}
    return {"began": began, "steps": count.steps, "epochs": count.epochs, "weights": listed}


if __name__ == "__main__":
    told = Plan(**json.loads(sys.argv[1]))
    Path(told.folder).mkdir(exist_ok=True)
    result = train(told)
    (Path(told.folder) / f"done-{os.environ.get('RANK', '0')}").write_text(json.dumps(result))
