"""Trains a classifier of handwritten digits on the workers of a Ray cluster, and resumes if a worker is lost.

python ray_train.py --workers 2
"""

import argparse
from pathlib import Path
from typing import Any

import ray
import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from ray.train import FailureConfig, RunConfig, ScalingConfig, report
from ray.train.torch import TorchConfig, TorchTrainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(settings: dict[str, Any]) -> None:
    """The loop of each worker: nothing in it is Ray's but `report`."""
    accelerator = Accelerator(
        cpu=not settings["gpu"],
        split_batches=True,
        project_dir=settings["output"],  # a folder that all machines see
        project_config=ProjectConfiguration(automatic_checkpoint_naming=True, total_limit=2),
    )
    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader: Any = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.resume()  # from the newest checkpoint, if a worker was lost
    for epoch in range(loader.iteration, settings["epochs"]):
        total = torch.zeros((), device=accelerator.device)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), "mean").item()
        accelerator.print(f"epoch {epoch}: loss {mean:.6f}")
        accelerator.save_state()
        report({"epoch": epoch, "loss": mean})
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--output", type=Path, default=Path("runs/ray"))
    arguments = parser.parse_args()
    output = str(arguments.output.absolute())
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": arguments.epochs, "gpu": arguments.gpu, "output": output},
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.gpu),
        torch_config=TorchConfig(backend=None if arguments.gpu else "gloo"),
        run_config=RunConfig(storage_path=f"{output}/ray", failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
