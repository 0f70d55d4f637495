"""Trains a generator and a critic, each with an optimizer of its own, on points of a circle.

accel launch --cpu --num_processes 2 docs/examples/gan.py
"""

import argparse

import torch
from accel import Accelerator
from accel.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    angles = torch.rand(512) * 2 * torch.pi
    circle = TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1))
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    generator, critic, of_generator, of_critic, loader = accelerator.prepare(
        generator, critic, of_generator, of_critic, DataLoader(circle, batch_size=32, shuffle=True, drop_last=True)
    )
    criterion = nn.BCEWithLogitsLoss()

    for epoch in range(arguments.epochs):
        for (real,) in loader:
            noise = torch.randn(len(real), 8, device=accelerator.device)
            yes, no = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
            # one forward of the critic for both kinds: its gradients then travel once
            judged = critic(torch.cat([real, generator(noise).detach()]))
            loss_of_critic = criterion(judged, torch.cat([yes, no]))
            accelerator.backward(loss_of_critic)
            of_critic.step()
            of_critic.zero_grad()

            loss_of_generator = criterion(critic(generator(noise)), yes)
            accelerator.backward(loss_of_generator)
            of_generator.step()
            of_generator.zero_grad()
            of_critic.zero_grad()  # what the generator's loss has left in the critic
        critic_loss, generator_loss = accelerator.reduce(
            (loss_of_critic.detach(), loss_of_generator.detach()), reduction="mean"
        )
        accelerator.print(f"epoch {epoch}: critic {critic_loss:.3f}, generator {generator_loss:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
