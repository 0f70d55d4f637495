"""Classifies images that are cropped, turned and erased at random, alike on any number of processes.

python docs/examples/image_classification.py
accel launch --cpu --num_processes 2 docs/examples/image_classification.py --workers 2
"""

import argparse
import math
from collections.abc import Callable

import torch
from accel import Accelerator
from accel.utils import set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

HELD_OUT = 360
Transform = Callable[[Tensor], Tensor]


def random_crop(image: Tensor, padding: int = 1) -> Tensor:
    """A piece as large as the image, of the image with a black border."""
    _, height, width = image.shape
    top, left = torch.randint(2 * padding + 1, (2,)).tolist()
    return functional.pad(image, [padding] * 4)[:, top : top + height, left : left + width]


def random_rotation(image: Tensor, degrees: float = 10) -> Tensor:
    angle = math.radians(degrees) * (2 * torch.rand(1).item() - 1)
    turn = [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    grid = functional.affine_grid(torch.tensor([turn]), [1, *image.shape], align_corners=False)
    return functional.grid_sample(image[None], grid, align_corners=False)[0]


def random_erasing(image: Tensor, size: int = 2, probability: float = 0.25) -> Tensor:
    if torch.rand(1) >= probability:
        return image
    _, height, width = image.shape
    top, left = int(torch.randint(height - size + 1, ())), int(torch.randint(width - size + 1, ()))
    image = image.clone()
    image[:, top : top + size, left : left + size] = 0
    return image


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images with random transforms; those of torchvision fit in as they are."""

    def __init__(self, images: Tensor, labels: Tensor, *transforms: Transform) -> None:
        self.images, self.labels, self.transforms = images, labels, transforms
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.labels)

    def set_epoch(self, epoch: int) -> None:
        """The prepared loader calls it before each epoch."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        # The draw depends on the epoch and the image, not on the process or the worker that reads it.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.epoch * len(self) + index)
            for transform in self.transforms:
                image = transform(image)
        return (image - 0.3) / 0.38, self.labels[index]


def classifier() -> nn.Module:
    # A GroupNorm sees single images. A BatchNorm would see the part of the batch that its process has.
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]

    features = [*block(1, 32), *block(32, 32), nn.MaxPool2d(2), *block(32, 64), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64, help="images of a batch, over all processes")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=0, help="processes of each loader that read and transform")
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)
    set_seed(0)
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    train_data = Images(images[train], labels[train], random_crop, random_rotation, random_erasing)
    test_data = Images(images[test], labels[test])
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.05)
    size, workers = arguments.batch_size, arguments.workers
    train_loader = DataLoader(train_data, size, shuffle=True, drop_last=True, num_workers=workers)
    test_loader = DataLoader(test_data, 2 * size, num_workers=workers)
    model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
    steps = arguments.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=arguments.lr, total_steps=steps)

    for epoch in range(arguments.epochs):
        model.train()
        for batch, targets in train_loader:
            loss = functional.cross_entropy(model(batch), targets, label_smoothing=0.1)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        model.eval()
        correct = seen = 0
        for batch, targets in test_loader:
            with torch.no_grad():
                guesses = model(batch).argmax(dim=1)
            guesses, targets = accelerator.gather_for_metrics((guesses, targets))
            correct += int((guesses == targets).sum())
            seen += len(targets)
        mean_loss = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"epoch {epoch}: loss {mean_loss:.4f}, accuracy {correct / seen:.2%}")
    accelerator.print(f"result: accuracy {correct / seen:.2%} of {seen} held-out images")
    accelerator.end_training()


if __name__ == "__main__":
    main()
