"""Teaches a small model what a large one says; the teacher has no gradients and no optimizer.

accel launch --cpu --num_processes 2 docs/examples/distillation.py
"""

import argparse

import torch
from accel import Accelerator
from accel.utils import set_seed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

TEMPERATURE = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).requires_grad_(False).eval()
    student = nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(512, 16))
    student, optimizer, loader = accelerator.prepare(
        student, optimizer, DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    )
    # no container for gradients: the teacher has none
    teacher = accelerator.prepare_model(teacher, evaluation_mode=True)

    for epoch in range(arguments.epochs):
        for (inputs,) in loader:
            with torch.no_grad():
                wanted = functional.softmax(teacher(inputs) / TEMPERATURE, dim=-1)
            said = functional.log_softmax(student(inputs) / TEMPERATURE, dim=-1)
            loss = functional.kl_div(said, wanted, reduction="batchmean") * TEMPERATURE**2
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), reduction="mean")
        accelerator.print(f"epoch {epoch}: divergence {mean:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
