"""A value that is repeated for each sample of a batch counts once for each sample, at any number of processes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel import Accelerator, DataLoaderConfiguration
from accel_testing import MakePool
from numbers_to_load import NumberStream, ShardableStream
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

ROWS = 4


class Sharded(ShardableStream):
    num_shards = 2


LOADERS: dict[str, Callable[[int], Any]] = {
    "map-style": lambda n: DataLoader(TensorDataset(torch.arange(n)), ROWS),
    "shuffled": lambda n: DataLoader(TensorDataset(torch.arange(n)), ROWS, shuffle=True),
    "own batches": lambda n: DataLoader(
        TensorDataset(torch.arange(n)), batch_sampler=BatchSampler(SequentialSampler(range(n)), ROWS, False)
    ),
    "stream": lambda n: DataLoader(NumberStream(range(n)), ROWS),
    "stream with workers": lambda n: DataLoader(NumberStream(range(n)), ROWS, num_workers=1),
    "stream in shards": lambda n: DataLoader(Sharded(range(n)), ROWS),
}


def evaluated(kind: str, ending: str, dispatch: bool | None) -> list[int]:
    """The entries that each length of data gives to a metric."""
    config = DataLoaderConfiguration(ending=ending, dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    found = []
    for count in (8, 10, 13):
        losses = [
            accelerator.gather_for_metrics(torch.tensor(1.0).repeat(ROWS))
            for _ in accelerator.prepare(LOADERS[kind](count))
        ]
        found.append(len(torch.cat(losses)))
    return found


@pytest.mark.grid(2)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("ending", "dispatch"), [("pad", None), ("exact", None), ("pad", False), ("exact", False)])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_loss_that_is_repeated_counts_once_for_each_sample(
    kind: str, ending: str, dispatch: bool | None, size: int, world: MakePool
) -> None:
    """Feature row S79."""
    assert world(size).run(evaluated, kind, ending, dispatch) == [[8, 10, 13]] * size
