"""Ranks that read shards run out apart, and fail apart: what others are served and told then."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_data import prepare_data_loader
from accel_state.transports.torch_dist import TorchDist
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


class UnequalRows(IterableDataset[dict[str, Tensor]]):
    """Two shards, of eight rows and of two."""

    num_shards = 2

    def __init__(self, rows: int = 10) -> None:
        self.rows = rows

    def shard(self, num_shards: int, index: int) -> "UnequalRows":
        return UnequalRows(2 if index else 8)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return ({"x": torch.tensor(row), "label": torch.tensor(-row)} for row in range(self.rows))


def changed_by_the_loop() -> list[tuple[list[int], list[int]]]:
    seen = []
    for batch in prepare_data_loader(DataLoader(UnequalRows(), 2), transport=TorchDist()):
        label = batch.pop("label")
        seen.append((batch["x"].tolist(), label.tolist()))
        batch["x"] += 100
    return seen


def test_what_is_served_again_is_as_it_was_before_the_loop_changed_it(world: MakePool) -> None:
    long, short = world(2).run(changed_by_the_loop)
    assert long == [([row, row + 1], [-row, -row - 1]) for row in (0, 2, 4, 6)]
    assert short == [([0, 1], [0, -1])] * 4


class Refusing(UnequalRows):
    """Its shards can be put nowhere on rank 1."""

    def shard(self, num_shards: int, index: int) -> "Refusing":
        return Refusing(8)

    def state_dict(self) -> dict[str, int]:
        return {"at": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if torch.distributed.get_rank() == 1:
            raise KeyError("at")


def resumed_in_vain() -> str:
    def fresh() -> Any:
        return prepare_data_loader(DataLoader(Refusing(), 2), transport=TorchDist())

    loader, again = fresh(), fresh()
    for _ in loader:
        again.load_state_dict(loader.state_dict())
        break
    with pytest.raises((KeyError, ValueError)) as error:
        list(again)
    return str(error.value)


def test_what_fails_on_one_rank_at_a_resume_is_told_to_all(world: MakePool) -> None:
    zero, one = world(2).run(resumed_in_vain)
    assert one == "'at'"
    assert zero == "rank 1 cannot continue: 'at'"
