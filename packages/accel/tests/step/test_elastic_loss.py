"""A2, T5: training that goes on with another number of processes has the loss curve of the unbroken run."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_testing import MakePool
from suite.toy_models import Mlp
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset, IterableDataset

TOGETHER, N = 16, 128
Stop = dict[str, Any]


def sample(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    return torch.randn(8, generator=generator), torch.randn(4, generator=generator)


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return sample(index)


class Stream(IterableDataset[Any]):
    """Samples that can be sharded at their source."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def shard(self, num_shards: int, index: int) -> "Stream":
        return Stream(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[Any]:
        return map(sample, self.numbers)


def trained(stream: bool, accumulation: int, stop: Stop | None, steps: int, seed: int) -> tuple[list[float], Stop]:
    """The loss of each step, and all that is needed to go on after so many steps."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    torch.manual_seed(seed + accelerator.process_index)
    model = Mlp()
    if stop is not None:
        model.load_state_dict(stop["model"])
    optimizer = AdamW(model.parameters(), lr=0.01)
    size = TOGETHER // accumulation // accelerator.num_processes
    plain: Any = DataLoader(Stream(range(N)), size) if stream else DataLoader(Samples(), size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, plain)
    if stop is not None:
        optimizer.load_state_dict(stop["optimizer"])
        loader.load_state_dict(stop["loader"])
    losses: list[float] = []
    window: list[float] = []
    while True:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            window.append(float(accelerator.reduce(loss.detach(), "mean")))
            if accelerator.sync_gradients:
                losses.append(sum(window) / len(window))
                window = []
            if len(losses) == steps:
                state = {"model": accelerator.get_state_dict(model), "optimizer": optimizer.state_dict()}
                return losses, state | {"loader": loader.state_dict()}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.filterwarnings("ignore:.* samples are read again")
def test_the_loss_curve_is_that_of_the_unbroken_run(world: MakePool, stream: bool) -> None:
    """Two processes, then one that accumulates, then four, then one; over the end of two epochs."""
    (expected, _), _ = world(2).run(trained, stream, 1, None, 20, 5)
    losses: list[float] = []
    stop: Stop | None = None
    for size, accumulation, steps in ((2, 1, 3), (1, 2, 6), (4, 1, 4), (1, 1, 7)):
        (some, stop), *_ = world(size).run(trained, stream, accumulation, stop, steps, 5 if stop is None else 77)
        losses += some
    assert losses == pytest.approx(expected, rel=1e-5)
    assert len(set(losses)) == 20
