"""A job that trains on a stream of many files; start it again, in any number of processes, and it goes on.

file_streams.py FOLDER KIND WORKERS TOGETHER [--stop N]

The files are in FOLDER/files. The state of batch N is saved in FOLDER/state, from where the job goes on if it is there.
The samples of each step of the job are printed by the main process, and the most handles that a reader had open.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator, DataLoaderConfiguration
from torch import Tensor, nn
from torch.utils.data import DataLoader


def hugging_face(folder: Path) -> Any:
    from datasets import load_dataset

    found = sorted(map(str, folder.iterdir()))
    kind = "json" if found[0].endswith(".jsonl") else "parquet"
    return load_dataset(kind, data_files=found, split="train", streaming=True, cache_dir=f"{folder}-cache")


def number(sample: dict[str, Any]) -> dict[str, int]:
    return {"id": int(sample["id.txt"])}


def web(folder: Path, *, split: bool) -> Any:
    import webdataset

    urls = sorted(map(str, folder.iterdir()))
    splitter = {"nodesplitter": webdataset.split_by_node} if split else {}
    return webdataset.WebDataset(urls, shardshuffle=False, seed=1, **splitter).map(number)


def stream(kind: str, folder: Path) -> Any:
    return hugging_face(folder) if kind == "datasets" else web(folder, split=kind == "split tars")


def with_handles(rows: list[dict[str, int]]) -> tuple[Tensor, Tensor]:
    """The numbers of a batch, and how many handles are open where it is collated."""
    return torch.tensor([row["id"] for row in rows]), torch.tensor([len(os.listdir("/proc/self/fd"))])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=["datasets", "tars", "split tars"])
    parser.add_argument("workers", type=int)
    parser.add_argument("together", type=int, help="samples of a step of the whole job")
    parser.add_argument("--stop", type=int)
    given, _ = parser.parse_known_args()
    config = DataLoaderConfiguration(already_sharded=True) if given.kind == "split tars" else DataLoaderConfiguration()
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    plain = DataLoader[Any](
        stream(given.kind, given.folder / "files"),
        given.together // accelerator.num_processes,
        num_workers=given.workers,
        collate_fn=with_handles,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, plain)
    if (given.folder / "state").exists():
        accelerator.load_state(str(given.folder / "state"))
    most = 0
    for step, (numbers, handles) in enumerate(loader, start=1):
        accelerator.backward(model(numbers.float().unsqueeze(1)).mean())
        optimizer.step()
        optimizer.zero_grad()
        seen = sorted(accelerator.gather_for_metrics(numbers).tolist())
        most = max(most, *accelerator.gather(handles).tolist())
        accelerator.print("step", *seen)
        if step == given.stop:
            accelerator.save_state(str(given.folder / "state"))
            break
    accelerator.print("handles", most)


if __name__ == "__main__":
    main()
