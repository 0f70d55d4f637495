"""Keeps an average of the weights beside the model, and saves it with every checkpoint.

accel launch --cpu --num_processes 2 docs/examples/averaged_weights.py
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/averaged"))
    arguments = parser.parse_args()

    project = ProjectConfiguration(arguments.output, automatic_checkpoint_naming=True, total_limit=1)
    accelerator = Accelerator(project_config=project)
    set_seed(0)
    inputs = torch.randn(512, 8)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader: Any = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    moving = get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call] # of torch
    average = AveragedModel(accelerator.unwrap_model(model), multi_avg_fn=moving)
    accelerator.register_for_checkpointing(average=average)
    accelerator.resume()

    for epoch in range(loader.iteration, arguments.epochs):
        for batch, wanted in loader:
            loss = nn.functional.mse_loss(model(batch), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(accelerator.unwrap_model(model))
        path = accelerator.save_state()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, saved {path.name}")
    accelerator.save_model(average.module, arguments.output / "weights")
    accelerator.end_training()


if __name__ == "__main__":
    main()
