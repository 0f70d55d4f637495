"""Trains on tar files that webdataset reads, each process its own tars.

accel launch --cpu --num_processes 2 docs/examples/webdataset_stream.py
"""

import argparse
from pathlib import Path

import torch
import webdataset
from accel import Accelerator
from accel.utils import set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TARS, ROWS = 8, 180


def write_tars(folder: Path) -> None:
    """Eight tars of equal length: one, two, four and eight processes can divide them among themselves."""
    bunch = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    for tar in range(TARS):
        with webdataset.TarWriter(str(folder / f"{tar:03d}.tar")) as writer:
            for row in range(tar * ROWS, (tar + 1) * ROWS):
                image, label = bunch.images[row].astype("uint8"), int(bunch.target[row])
                writer.write({"__key__": f"{row:06d}", "npy": image, "cls": label})


def scaled(sample: tuple[object, int]) -> tuple[Tensor, int]:
    image, label = sample
    return torch.as_tensor(image).float() / 16, label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/tars"), help="the tars; written if there are none")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32, help="samples of a batch, over all processes")
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)
    set_seed(0)
    with accelerator.main_process_first():
        if not arguments.folder.exists():
            write_tars(arguments.folder)
    urls = sorted(map(str, arguments.folder.glob("*.tar")))
    # The whole list and no splitter: accel divides the tars. Give each shuffle a seed, for jobs that are resumed.
    stream = webdataset.WebDataset(urls, shardshuffle=False).shuffle(100, seed=0)
    stream = stream.decode().to_tuple("npy", "cls").map(scaled)

    bunch = load_digits()
    held_out = slice(TARS * ROWS, None)
    inputs, targets = torch.tensor(bunch.images[held_out], dtype=torch.float32) / 16, bunch.target[held_out]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        optimizer,
        DataLoader(stream, batch_size=arguments.batch_size),
        DataLoader(TensorDataset(inputs, torch.tensor(targets)), batch_size=128),
    )

    for epoch in range(arguments.epochs):
        read = 0
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            read += len(accelerator.gather_for_metrics(labels))
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, {read} samples of {len(urls)} tars")

    correct = 0
    for images, labels in test_loader:
        with torch.no_grad():
            right = model(images).argmax(dim=1) == labels
        correct += int(accelerator.gather_for_metrics(right).sum())
    accelerator.print(f"result: accuracy {correct / len(targets):.2%} after {read} samples an epoch")
    accelerator.end_training()


if __name__ == "__main__":
    main()
