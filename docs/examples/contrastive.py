"""Contrasts each pair with the pairs of all processes: the loss sees the batch of the whole job.

accel launch --cpu --num_processes 2 docs/examples/contrastive.py
"""

import argparse

import torch
from accel import Accelerator
from accel.utils import set_seed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)  # the loss depends on the size of the whole batch
    set_seed(0)
    data = TensorDataset(torch.randn(512, 16))
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    encoder, optimizer, loader = accelerator.prepare(
        encoder, optimizer, DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    )

    for epoch in range(arguments.epochs):
        for (inputs,) in loader:
            views = torch.cat([inputs + 0.1 * torch.randn_like(inputs), inputs + 0.1 * torch.randn_like(inputs)])
            first, second = functional.normalize(encoder(views), dim=-1).chunk(2)
            # `gather` carries no gradients: those of this process come through its own rows, `first`
            everywhere = accelerator.gather(second.detach())
            start = accelerator.process_index * len(first)
            targets = torch.arange(start, start + len(first), device=first.device)
            loss = functional.cross_entropy(first @ everywhere.T / 0.1, targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean")
        accelerator.print(f"epoch {epoch}: loss {mean:.4f} among {len(everywhere)} pairs")
    accelerator.end_training()


if __name__ == "__main__":
    main()
