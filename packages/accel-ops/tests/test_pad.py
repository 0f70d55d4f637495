from typing import Any

import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import gather, pad_across_processes, pad_input_tensors
from accel_testing import MakePool, assert_same_numbers
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(derandomize=True, deadline=None)


def padded(per_rank: list[Any], options: dict[str, Any]) -> Any:
    transport = TorchDist()
    return pad_across_processes(per_rank[transport.rank], transport, **options)


def test_ragged_rows_are_padded_to_the_longest_and_then_gather(world: MakePool) -> None:
    """Feature row S80: [2, 3] and [2, 5] along dim 1."""
    two = world(2)
    short, long = torch.ones(2, 3), torch.full((2, 5), 2.0)
    first, second = two.run(padded, [short, long], {"dim": 1})
    assert_same_numbers(first, torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]] * 2), atol=0)
    assert_same_numbers(second, long, atol=0)
    for found in two.run(gathered_after_padding, [short, long]):
        assert_same_numbers(found, torch.cat([first, second]), atol=0)


def gathered_after_padding(per_rank: list[torch.Tensor]) -> torch.Tensor:
    transport = TorchDist()
    both: torch.Tensor = gather(pad_across_processes(per_rank[transport.rank], transport, dim=1), transport)
    return both


def test_only_the_dim_that_was_asked_for_is_padded(world: MakePool) -> None:
    """Reference 2.7: ones(2, 1) and ones(3, 2) along dim 1 with -1."""
    first, second = world(2).run(padded, [torch.ones(2, 1), torch.ones(3, 2)], {"dim": 1, "pad_index": -1})
    assert first.tolist() == [[1, -1], [1, -1]]
    assert second.tolist() == [[1, 1], [1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 0]),
        ({"pad_index": 9}, [1, 1, 9]),
        ({"pad_first": True}, [0, 1, 1]),
        ({"dim": -1, "pad_index": 9, "pad_first": True}, [9, 1, 1]),
        ({"dim": 1}, [1, 1]),
        ({"dim": -2}, [1, 1]),
    ],
)
def test_padding_goes_to_either_end_and_leaves_a_missing_dim_alone(
    world: MakePool, options: dict[str, Any], expected: list[int]
) -> None:
    """Feature row S80, reference 2.7."""
    longer = torch.ones(3, dtype=torch.int64)
    first, second = world(2).run(padded, [longer[:2], longer], options)
    assert (first.tolist(), first.dtype) == (expected, torch.int64)
    assert second.tolist() == [1, 1, 1]


def a_missing_dim() -> str:
    with pytest.raises(IndexError) as error:
        pad_across_processes({"x": [torch.ones(2, 3, 4), torch.ones(2)]}, TorchDist(), dim=5)
    return str(error.value)


@pytest.mark.parametrize("size", [1, 2])
def test_a_dim_that_no_tensor_has_is_refused(world: MakePool, size: int) -> None:
    words = "pad_across_processes (dim 5): no tensor has that dim, they have up to 3 dims"
    assert world(size).run(a_missing_dim) == [words] * size


def test_every_leaf_is_padded_by_itself(world: MakePool) -> None:
    """Feature row S80: nested, without dims, with no rows on one rank, of equal length."""
    data = [
        {"a": [torch.arange(n)], "s": torch.tensor(n), "same": torch.ones(2), "flag": torch.ones(2 - n).bool()}
        for n in range(3)
    ]
    for rank, found in enumerate(world(3).run(padded, data, {})):
        row, flags = [*range(rank), 0, 0][:2], [*[True] * (2 - rank), False, False][:2]
        assert_same_numbers(
            found,
            {"a": [torch.tensor(row)], "s": torch.tensor(rank), "same": torch.ones(2), "flag": torch.tensor(flags)},
            atol=0,
        )


def test_dtypes_of_ranks_may_differ(world: MakePool) -> None:
    first, second = world(2).run(padded, [torch.ones(1), torch.ones(2).long()], {})
    assert (first.tolist(), first.dtype, second.dtype) == ([1.0, 0.0], torch.float32, torch.int64)


def test_alone_nothing_is_padded() -> None:
    """Feature row S80."""
    x = torch.ones(2, 3)
    assert pad_across_processes([x], Single(), dim=1)[0] is x


@pytest.mark.parametrize(
    ("rows", "processes", "wanted"),
    [(1, 2, 2), (3, 2, 4), (4, 3, 6), (3, 4, 4), (4, 6, 6), (1, 6, 6), (2, 6, 6), (61, 6, 66), (4, 2, 4), (0, 2, 0)],
)
def test_rows_are_filled_up_with_the_last_one(rows: int, processes: int, wanted: int) -> None:
    """Reference 2.7."""
    batch: dict[str, Any] = {"x": torch.arange(rows * 2).view(rows, 2), "text": "stays"}
    found = pad_input_tensors(batch, rows, processes)
    assert found["x"].shape == (wanted, 2)
    assert torch.equal(found["x"][:rows], batch["x"])
    assert all(torch.equal(row, batch["x"][-1]) for row in found["x"][rows:])
    assert found["text"] == "stays"


def test_tensors_that_are_no_rows_of_the_batch_stay() -> None:
    scalar, other = torch.tensor(1.0), torch.ones(5)
    found = pad_input_tensors([scalar, other], 3, 2)
    assert found[0] is scalar
    assert found[1] is other


def test_another_dim_may_hold_the_rows() -> None:
    assert pad_input_tensors(torch.tensor([[1, 2, 3]]), 3, 2, dim=1).tolist() == [[1, 2, 3, 3]]


@QUICK
@given(st.integers(1, 50), st.integers(1, 9))
def test_filled_up_rows_are_the_next_multiple_of_the_processes(rows: int, processes: int) -> None:
    found = pad_input_tensors(torch.arange(rows), rows, processes)
    assert len(found) % processes == 0
    assert rows <= len(found) < rows + processes
    assert found.tolist() == [min(index, rows - 1) for index in range(len(found))]
