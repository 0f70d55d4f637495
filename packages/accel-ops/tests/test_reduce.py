import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_comm import Reduction, Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import reduce
from accel_ops.reduce import _all_reduced
from accel_testing import MakePool, assert_same_numbers
from suite.recording_device import RecordingDevice

ALL: list[Reduction] = ["sum", "mean", "max", "min"]


def two_and_two() -> dict[Reduction, Any]:
    transport = TorchDist()
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[transport.rank]
    return {how: reduce({"x": x, "n": (x.long(),)}, transport, how=how) for how in ALL}


def test_the_numbers_of_the_reference(world: MakePool) -> None:
    """Reference 2.7: [1, 2] and [3, 4]; whole numbers stay whole, but for a mean."""
    expected: dict[Reduction, list[int]] = {"sum": [4, 6], "mean": [2, 3], "max": [3, 4], "min": [1, 2]}
    for found in world(2).run(two_and_two):
        for how, numbers in expected.items():
            whole = torch.tensor(numbers, dtype=torch.float32 if how == "mean" else torch.int64)
            assert_same_numbers(found[how], {"x": torch.tensor(numbers).float(), "n": (whole,)}, atol=0)


def with_defaults_and_scale() -> list[torch.Tensor]:
    transport = TorchDist()
    x = torch.tensor([1.0, 5.0]) * (transport.rank + 1)
    found = [
        reduce(x, transport),
        reduce(x, transport, how="sum", scale=0.5),
        reduce(x[0], transport, scale=10.0),
        reduce(x.long(), transport, how="sum", scale=0.5),
    ]
    assert x.tolist() == [1.0 * (transport.rank + 1), 5.0 * (transport.rank + 1)]
    return found


def test_the_mean_is_the_default_and_the_result_is_scaled(world: MakePool) -> None:
    """Reference 1.8 and 2.7; the input keeps its numbers."""
    ranks = torch.tensor([1.0, 2.0, 3.0])
    expected = [
        torch.tensor([2.0, 10.0]),
        torch.tensor([3.0, 15.0]),
        ranks.mean() * 10,
        torch.tensor([3.0, 15.0]),
    ]
    for found in world(3).run(with_defaults_and_scale):
        assert_same_numbers(found, expected, atol=1e-6)


def losses() -> torch.Tensor:
    transport = TorchDist()
    generator = torch.Generator().manual_seed(transport.rank)
    mean: torch.Tensor = reduce(torch.rand(100, generator=generator), transport)
    return mean


def test_a_mean_over_ranks_is_the_mean_of_one_process(world: MakePool) -> None:
    every = torch.stack([torch.rand(100, generator=torch.Generator().manual_seed(rank)) for rank in range(3)])
    for found in world(3).run(losses):
        assert_same_numbers(found, every.mean(0), atol=1e-6)


def reduced_on(transport: Transport, per_rank: list[Any], how: Reduction) -> Any:
    return reduce(per_rank[transport.rank], transport, how=how)


@pytest.mark.parametrize("length", [3, 60_000])
@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.int64, [3, 6]),
        pytest.param(torch.bool, [1, 1]),
        pytest.param(torch.uint8, [200, 210]),
    ],
)
def test_a_mean_of_whole_numbers_is_their_mean(
    loopback: Callable[..., list[Any]], dtype: torch.dtype, numbers: list[int], length: int
) -> None:
    """Reference 2.7: as alone, where it is the number itself."""
    data = [torch.full((length,), number).to(dtype) for number in numbers]
    for found in loopback(2, reduced_on, data, "mean"):
        assert_same_numbers(found, torch.full((length,), sum(numbers) / 2), atol=0)


@pytest.mark.parametrize("beside", [1, pytest.param(60_000)])
def test_what_has_no_numbers_gets_the_dtype_of_a_mean_and_no_gradient(
    loopback: Callable[..., list[Any]], beside: int
) -> None:
    """A4: beside small and large ones."""
    data = [torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, requires_grad=True), torch.ones(beside)]
    for found in loopback(2, reduced_on, [data, data], "mean"):
        assert [one.dtype for one in found] == [torch.float32] * 3
        assert [one.requires_grad for one in found] == [False] * 3


def extremes(length: int) -> list[list[bool]]:
    transport = TorchDist()
    found = []
    for rank in range(transport.size):
        x = torch.full((length,), float("nan") if transport.rank == rank else 1.0)
        found.append([bool(reduce(x, transport, how=how).isnan().all()) for how in ALL])
    return found


@pytest.mark.parametrize("length", [3, pytest.param(60_000)])
def test_what_is_no_number_on_one_rank_is_none_in_the_result(world: MakePool, length: int) -> None:
    """Torch's own meaning of max and min, whichever rank has it."""
    assert world(3).run(extremes, length) == [[[True] * 4] * 3] * 3


@pytest.mark.parametrize(("how", "combined"), [("max", torch.fmax), ("min", torch.fmin)])
def test_a_device_whose_library_drops_what_is_no_number_keeps_it(
    how: Reduction, combined: Callable[..., torch.Tensor]
) -> None:
    """NCCL compares as fmax and fmin do, which take the number of the two."""
    with RecordingDevice().installed() as gpu:
        here, there = gpu.put(torch.tensor([1.0, 2.0, torch.nan])), gpu.put(torch.tensor([1.0, torch.nan, 1.0]))

        def nccl(mine: torch.Tensor, reduction: Reduction) -> torch.Tensor:
            if mine.dtype == torch.uint8:
                return torch.maximum(mine, there.isnan().to(torch.uint8))
            return combined(mine, there)

        result = _all_reduced(here, SimpleNamespace(all_reduce=nccl), how)  # type: ignore[arg-type] # a stand-in
        assert result.isnan().cpu().tolist() == [False, True, True]


@pytest.mark.parametrize("how", ["max", "min"])
def test_numbers_without_an_order_have_no_extreme(loopback: Callable[..., list[Any]], how: Reduction) -> None:
    data = [torch.ones(1), torch.ones(1, dtype=torch.complex64)]
    text = re.escape(f"reduce ({how}) needs numbers that have an order; found torch.complex64 at data[1]")
    with pytest.raises(TypeError, match=text):
        loopback(2, reduced_on, [data, data], how)
    with pytest.raises(TypeError, match=text):
        reduce(data, Single(), how=how)


def test_an_unknown_reduction_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="reduction='median': expected one of sum, mean, max, min"):
        reduce(torch.ones(1), Single(), how="median")  # type: ignore[arg-type] # the mistake


def test_alone_the_numbers_are_those_of_the_input_times_the_scale() -> None:
    x = torch.tensor([1.0, 2.0])
    for how in ALL:
        assert_same_numbers(reduce([x], Single(), how=how, scale=3.0), [torch.tensor([3.0, 6.0])], atol=0)
    assert reduce(x, Single()).data_ptr() != x.data_ptr()
