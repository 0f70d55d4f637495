"""`prepare` returns what it was given: checked by mypy, and run."""

from typing import Any, assert_type

import torch
from accel import Accelerator
from accel_testing import MakePool
from suite.toy_models import Mlp, RangeDataset
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


def flat(step: int) -> float:
    return 1.0


def prepare_in_every_number() -> list[str]:
    accelerator = Accelerator(cpu=True)
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    loader: DataLoader[Any] = DataLoader(RangeDataset(8))
    scheduler = LambdaLR(optimizer, flat)
    one = accelerator.prepare(model)
    assert_type(one, Mlp)
    two = accelerator.prepare(one, optimizer)
    assert_type(two, tuple[Mlp, SGD])
    three = accelerator.prepare(one, two[1], loader)
    assert_type(three, tuple[Mlp, SGD, DataLoader[Any]])
    four = accelerator.prepare(one, two[1], three[2], scheduler)
    assert_type(four, tuple[Mlp, SGD, DataLoader[Any], LambdaLR])
    five = accelerator.prepare(*four, None)
    assert_type(five, tuple[Mlp, SGD, DataLoader[Any], LambdaLR, None])
    assert_type(accelerator.device, torch.device)
    return [type(each).__name__ for each in five]


def test_what_goes_in_comes_out(world: MakePool) -> None:
    """S30, S31: in the order given; one object by itself."""
    expected = ["AcceleratedOptimizer", "DataLoaderShard", "AcceleratedScheduler", "NoneType"]
    assert world(1).run(prepare_in_every_number) == [["Mlp", *expected]]
