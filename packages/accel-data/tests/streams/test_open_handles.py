"""A loader worker holds few more files open than one of plain torch with `split_dataset_by_node`."""

import os
from pathlib import Path
from typing import Any

import pytest
from accel_data import prepare_data_loader
from accel_testing import MakePool
from torch.utils.data import DataLoader


def files(folder: str, *, shuffle: bool) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import load_dataset

    found = sorted(map(str, Path(folder).iterdir()))
    kind = "json" if found[0].endswith(".jsonl") else "parquet"
    whole = load_dataset(kind, data_files=found, split="train", streaming=True, cache_dir=f"{folder}-cache")
    return whole.shuffle(seed=1, buffer_size=50, max_buffer_input_shards=1) if shuffle else whole


def with_handles(rows: list[dict[str, int]]) -> tuple[list[int], int]:
    """The numbers of a batch, and how many handles are open where it is collated."""
    return [row["id"] for row in rows], len(os.listdir("/proc/self/fd"))


def most_of(loader: Any) -> int:
    """Handles of a worker, at most, in some twenty batches of each."""
    return max(int(count) for _, (_, count) in zip(range(40), loader, strict=False))


def plainly(whole: Any, rank: int) -> Any:
    from datasets.distributed import split_dataset_by_node

    return DataLoader[Any](split_dataset_by_node(whole, rank, 2), 4, num_workers=2, collate_fn=with_handles)


def handles(folder: str, shuffle: bool, rank: int) -> tuple[int, int]:
    """Those of plain torch, and ours, of one rank of a simulated world."""
    plain = most_of(plainly(files(folder, shuffle=shuffle), rank))
    loader = DataLoader[Any](files(folder, shuffle=shuffle), 4, num_workers=2, collate_fn=with_handles)
    return plain, most_of(prepare_data_loader(loader, num_processes=2, process_index=rank))


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("kind", ["json_files", "parquet_files"])
def test_a_worker_opens_few_files(world: MakePool, kind: str, shuffle: bool, request: pytest.FixtureRequest) -> None:
    """A2: 500 files, two ranks, two workers: at most ten more than plain torch."""
    for rank in range(2):
        ((plain, ours),) = world(1, join=False).run(handles, request.getfixturevalue(kind), shuffle, rank)
        assert ours <= plain + 10
