"""Stops all processes at the same epoch, when the loss on held-out data has not improved for a while.

accel launch --cpu --num_processes 2 docs/examples/early_stopping.py
"""

import argparse

import torch
from accel import Accelerator
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--patience", type=int, default=2, help="epochs without improvement before the end")
    arguments = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    inputs = torch.randn(320, 8)
    targets = inputs.sum(dim=1, keepdim=True) + 0.5 * torch.randn(320, 1)
    training = DataLoader(TensorDataset(inputs[:256], targets[:256]), batch_size=16, shuffle=True)
    held_out = DataLoader(TensorDataset(inputs[256:], targets[256:]), batch_size=16)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, training, held_out = accelerator.prepare(model, optimizer, training, held_out)

    best, waited = float("inf"), 0
    for epoch in range(arguments.epochs):
        for batch, wanted in training:
            accelerator.backward(nn.functional.mse_loss(model(batch), wanted))
            optimizer.step()
            optimizer.zero_grad()
        losses = []
        with torch.no_grad():
            for batch, wanted in held_out:
                each = nn.functional.mse_loss(model(batch), wanted, reduction="none")
                losses.append(accelerator.gather_for_metrics(each))
        # every process has gathered the same losses; the flag is for a decision that only one process makes
        loss = torch.cat(losses).mean().item()
        waited = 0 if loss < best - 1e-4 else waited + 1
        best = min(best, loss)
        accelerator.print(f"epoch {epoch}: held-out loss {loss:.4f}")
        if accelerator.is_main_process and waited >= arguments.patience:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            accelerator.print(f"no improvement for {arguments.patience} epochs")
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
