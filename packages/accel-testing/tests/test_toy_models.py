from __future__ import annotations

import subprocess
import sys

import accel_testing
import pytest
import torch
from accel_testing import Mlp, RangeDataset, RangeStream, Regression, assert_same_numbers
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


def test_importing_the_package_and_its_plugin_does_not_import_torch() -> None:
    code = "import sys, accel_testing, accel_testing.plugin; sys.exit('torch' in sys.modules)"
    path = str(accel_testing.__path__[0]) + "/.."
    subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"], check=True)


@pytest.mark.parametrize("name", accel_testing.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(accel_testing, name).__module__.startswith("accel_testing.")


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match="it has Cases"):
        getattr(accel_testing, "Wrold")  # noqa: B009 # mypy knows that it is not there
