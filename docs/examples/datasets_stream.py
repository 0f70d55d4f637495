"""Trains on a stream of files that the `datasets` library reads, each process its own files.

accel launch --cpu --num_processes 2 docs/examples/datasets_stream.py
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import set_seed
from datasets import load_dataset
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FILES, ROWS = 8, 180


def write_files(folder: Path) -> None:
    """Eight files of equal length: one, two, four and eight processes can divide them among themselves."""
    bunch = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(FILES):
        rows = range(file * ROWS, (file + 1) * ROWS)
        lines = [json.dumps({"pixels": bunch.data[row].tolist(), "label": int(bunch.target[row])}) for row in rows]
        (folder / f"{file:03d}.jsonl").write_text("\n".join(lines))


def scaled(row: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": torch.tensor(row["pixels"]) / 16, "label": row["label"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/jsonl"), help="the files; written if there are none")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32, help="samples of a batch, over all processes")
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)
    set_seed(0)
    with accelerator.main_process_first():
        if not arguments.folder.exists():
            write_files(arguments.folder)
    files = sorted(map(str, arguments.folder.glob("*.jsonl")))
    # The shuffle draws from its seed and the epoch, so that a job which is resumed reads the same samples.
    stream = load_dataset("json", data_files=files, split="train", streaming=True)
    stream = stream.shuffle(seed=0, buffer_size=100, max_buffer_input_shards=1).map(scaled)

    bunch = load_digits()
    held_out = slice(FILES * ROWS, None)
    inputs, targets = torch.tensor(bunch.data[held_out], dtype=torch.float32) / 16, torch.tensor(bunch.target[held_out])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        optimizer,
        DataLoader(stream, batch_size=arguments.batch_size),
        DataLoader(TensorDataset(inputs, targets), batch_size=128),
    )

    for epoch in range(arguments.epochs):
        read = 0
        for batch in train_loader:
            loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            read += len(accelerator.gather_for_metrics(batch["label"]))
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, {read} samples of {len(files)} files")

    correct = 0
    for inputs, targets in test_loader:
        with torch.no_grad():
            right = model(inputs).argmax(dim=1) == targets
        correct += int(accelerator.gather_for_metrics(right).sum())
    accelerator.print(f"result: accuracy {correct / len(bunch.target[held_out]):.2%} after {read} samples an epoch")
    accelerator.end_training()


if __name__ == "__main__":
    main()
