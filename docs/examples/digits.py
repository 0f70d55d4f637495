"""Trains a classifier of handwritten digits on any number of processes.

python docs/examples/digits.py
torchrun --nproc-per-node 2 docs/examples/digits.py
accel launch --cpu --num_processes 2 docs/examples/digits.py
python docs/examples/digits.py --track && accel runs show last
"""

import argparse
from pathlib import Path

import torch
from accel import Accelerator
from accel.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

HELD_OUT = 360


def digits() -> tuple[TensorDataset, TensorDataset]:
    """The 1,797 images that come with scikit-learn: 360 held out, the others to train on."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=32, help="samples of a batch, over all processes")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--output", type=Path, default=Path("runs/digits"))
    parser.add_argument("--track", action="store_true", help="leave a record of the run in runs, for accel runs")
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True, log_with="local" if arguments.track else None)
    accelerator.init_trackers("digits", vars(arguments))
    set_seed(0)
    train_data, test_data = digits()
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    train_loader = DataLoader(train_data, batch_size=arguments.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_data, batch_size=128)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=arguments.lr, total_steps=arguments.epochs * len(train_loader)
    )

    accelerator.print(f"{accelerator.num_processes} process(es) on {accelerator.device.type}")
    bar = tqdm(total=arguments.epochs * len(train_loader), disable=not accelerator.is_local_main_process)
    step = 0
    for epoch in range(1, arguments.epochs + 1):
        model.train()
        losses = []
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            accelerator.log({"loss": loss, "rate": scheduler.get_last_lr()[0]}, step=step)
            step += 1
            bar.update(1)
        mean_loss = accelerator.reduce(torch.stack(losses).mean(), "mean").item()

        model.eval()
        correct = seen = 0
        for images, labels in test_loader:
            with torch.no_grad():
                guesses = model(images).argmax(dim=1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))
            correct += int((guesses == labels).sum())
            seen += len(labels)
        accelerator.log({"accuracy": correct / seen}, step=step)
        if accelerator.is_main_process:
            bar.write(f"epoch {epoch}: loss {mean_loss:.4f}, accuracy {correct / seen:.2%} of {seen} held-out images")
    bar.close()

    path = accelerator.save_model(model, arguments.output)
    accelerator.print(f"weights saved to {path}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
