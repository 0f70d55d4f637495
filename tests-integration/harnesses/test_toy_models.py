from __future__ import annotations

import pytest
import torch
from accel_testing import assert_same_numbers
from suite.toy_models import Mlp, RangeDataset, RangeStream, Regression
from torch.utils.data import DataLoader


def test_regression_is_a_line() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    y = Regression(2, 3, dtype=torch.float64)(x)
    assert y.tolist() == [3.0, 5.0, 7.0]
    assert y.dtype == torch.float64


def test_one_seed_makes_one_mlp_and_moves_no_global_rng() -> None:
    before = torch.get_rng_state()
    first, same, other = Mlp(), Mlp(), Mlp(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_numbers(first.state_dict(), same.state_dict(), atol=0)
    assert not torch.equal(first.first.weight, other.first.weight)
    assert first(torch.ones(5, 8)).shape == (5, 4)


def test_range_dataset_counts_its_reads() -> None:
    data = RangeDataset(5)
    batches = [batch.tolist() for batch in DataLoader(data, batch_size=2)]
    assert batches == [[0, 1], [2, 3], [4]]
    assert data.reads == [0, 1, 2, 3, 4]


def test_range_dataset_ends() -> None:
    assert [int(RangeDataset(3)[i]) for i in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError, match="expected 0 to 2"):
        RangeDataset(3)[3]


def test_range_stream_can_be_read_twice() -> None:
    stream = RangeStream(3)
    assert [int(i) for i in stream] == [int(i) for i in stream] == [0, 1, 2]
