"""Ranks that hold parts of the same layers draw the same random numbers, and others do not."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from accel import Accelerator, ParallelismConfig
from accel.utils import set_seed
from accel_testing import MakePool
from torch import nn

PLAN = {"0": "colwise", "1": "rowwise"}


class Layout(NamedTuple):
    shards: int = 1
    tensor: int = 1

    @property
    def world(self) -> int:
        return self.shards * self.tensor

    @property
    def ways(self) -> dict[str, Any]:
        if self.tensor == 1:
            return {}
        return {"parallelism_config": ParallelismConfig(dp_shard_size=self.shards, tp_size=self.tensor, tp_plan=PLAN)}


class Draws(NamedTuple):
    torch: float
    python: float
    numpy: float


def draws() -> Draws:
    return Draws(torch.rand(()).item(), random.random(), float(numpy.random.rand()))


def prepared(layout: Layout) -> Accelerator:
    accelerator = Accelerator(cpu=True, **layout.ways)
    accelerator.prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    return accelerator


def seeded(layout: Layout) -> Draws:
    prepared(layout)
    set_seed(5, device_specific=True)
    return draws()


def saved(layout: Layout, folder: str) -> Draws:
    accelerator = prepared(layout)
    set_seed(7, device_specific=True)
    accelerator.save_state(folder)
    return draws()


def loaded(layout: Layout, folder: str) -> Draws:
    accelerator = prepared(layout)
    # generators that nothing shares have to follow
    set_seed(100 + accelerator.process_index)
    accelerator.load_state(folder)
    return draws()


def test_a_seed_for_each_process_is_equal_where_layers_are_divided(world: MakePool) -> None:
    found, wanted = world(4).run(seeded, Layout(2, 2)), world(2).run(seeded, Layout(2))
    assert wanted[0] != wanted[1]
    assert found == [wanted[0], wanted[0], wanted[1], wanted[1]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Layout(2), Layout(1, 2)),
        (Layout(1, 2), Layout(2)),
        (Layout(2), Layout(2, 2)),
        (Layout(2, 2), Layout(2)),
        (Layout(1, 2), Layout(2, 2)),
    ],
)
def test_ranks_that_divide_layers_go_on_alike_from_any_layout(
    before: Layout, after: Layout, world: MakePool, tmp_path: Path
) -> None:
    """Each group goes on where the group with the same samples stood, or begins anew from the first."""
    written = world(before.world).run(saved, before, str(tmp_path / "state"))[:: before.tensor]
    read = world(after.world).run(loaded, after, str(tmp_path / "state"))
    groups = read[:: after.tensor]
    assert read == [draw for draw in groups for _ in range(after.tensor)]
    assert groups[0] == written[0]
    assert groups == written or len(groups) != len(written)
    assert len(set(groups)) == len(groups)
