"""Trains a generator and a discriminator of images, each with an optimizer of its own."""

import argparse

import torch
from accel import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

NOISE = 32


class Images(Dataset[torch.Tensor]):
    """Images that are made when they are read."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(1024, generator=torch.Generator().manual_seed(index))


def main() -> None:
    """Train for some steps of both optimizers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    accelerator = Accelerator()
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(NOISE, 512), nn.ReLU(), nn.Linear(512, 1024), nn.Tanh())
    judge = nn.Sequential(nn.Linear(1024, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4)
    loader = DataLoader(Images(), batch_size=16)
    generator, judge, of_generator, of_judge, loader = accelerator.prepare(
        generator, judge, of_generator, of_judge, loader
    )
    losses = nn.BCEWithLogitsLoss()
    for step, real in enumerate(loader):
        made = generator(torch.randn(len(real), NOISE, device=accelerator.device))
        ones, zeros = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
        accelerator.backward(losses(judge(real), ones) + losses(judge(made.detach()), zeros))
        of_judge.step()
        of_judge.zero_grad()
        accelerator.backward(losses(judge(made), ones))
        of_generator.step()
        of_generator.zero_grad()
        if step + 1 == steps:
            return


if __name__ == "__main__":
    main()
