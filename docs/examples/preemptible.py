"""Saves and stops if a scheduler asks for it, and goes on where it was when the same command starts again.

accel launch --cpu --num_processes 2 docs/examples/preemptible.py
sbatch docs/examples/slurm/array.sbatch           # a job for each learning rate
kubectl apply -f docs/examples/kubernetes/job.yaml
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
HELD_OUT = 360


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    parser.add_argument("--task", type=int, default=task, help="which learning rate; default: the task of the array")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("runs/preemptible"))
    arguments = parser.parse_args()

    # SLURM is told to send SIGUSR1; Kubernetes sends SIGTERM.
    project = ProjectConfiguration(
        arguments.output / f"task-{arguments.task}",
        automatic_checkpoint_naming=True,
        total_limit=1,
        stop_signals=("SIGTERM", "SIGUSR1"),
    )
    accelerator = Accelerator(split_batches=True, project_config=project)
    set_seed(0)
    bunch = load_digits()
    data = TensorDataset(torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target))
    alike = torch.Generator().manual_seed(0)
    train_data, test_data = random_split(data, [len(data) - HELD_OUT, HELD_OUT], generator=alike)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATES[arguments.task])
    train_loader: Any = DataLoader(train_data, batch_size=32, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_data, batch_size=128)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    if (checkpoint := accelerator.resume()) is not None:
        accelerator.print(f"goes on from {checkpoint.name}, in epoch {train_loader.iteration}", flush=True)

    for epoch in range(train_loader.iteration, arguments.epochs):
        for inputs, targets in train_loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.stop_requested():
                accelerator.save_and_stop()  # ends with exit code 75: start the same command again
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    correct = 0
    for inputs, targets in test_loader:
        with torch.no_grad():
            right = model(inputs).argmax(dim=1) == targets
        correct += int(accelerator.gather_for_metrics(right).sum())
    accelerator.print(f"result: accuracy {correct / HELD_OUT:.2%} with rate {RATES[arguments.task]}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
