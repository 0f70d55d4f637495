"""Arguments that have to be the same on all ranks are refused on all where they are not; and means stay in range."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_comm import CollectiveMismatch, Transport
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import broadcast, broadcast_object_list, reduce
from accel_testing import MakePool

X = torch.ones(3)


def of_own_source(transport: Transport) -> Any:
    return broadcast(X, transport, source=transport.rank)


def of_own_objects(transport: Transport) -> Any:
    return broadcast_object_list([1], transport, source=transport.rank)


def of_own_scale(transport: Transport) -> Any:
    return reduce(X, transport, scale=0.5 + transport.rank)


def of_one_scale(transport: Transport) -> Any:
    return reduce(X, transport, scale=2.0 if transport.rank else 1.0)


CALLS: dict[Callable[..., Any], list[str]] = {
    of_own_source: ["broadcast (from rank 0)", "broadcast (from rank 1)"],
    of_own_objects: ["broadcast_object_list (from rank 0)", "broadcast_object_list (from rank 1)"],
    of_own_scale: ["reduce (mean, scale 0.5)", "reduce (mean, scale 1.5)"],
    of_one_scale: ["reduce (mean)", "reduce (mean, scale 2.0)"],
}


def refused(call: Callable[..., Any]) -> str:
    with pytest.raises(CollectiveMismatch) as failure:
        call(TorchDist())
    return str(failure.value)


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_that_differs_is_refused_on_all_ranks(call: Callable[..., Any], world: MakePool) -> None:
    for text in world(2).run(refused, call):
        for rank, name in enumerate(CALLS[call]):
            assert re.search(rf"\n  rank {rank}: {re.escape(name)} at \S*{Path(__file__).name}:\d+\n", text)


def mean_of(transport: Transport, length: int) -> tuple[torch.dtype, list[float]]:
    found = reduce(torch.full((length,), 60000.0, dtype=torch.float16), transport)
    return found.dtype, found.unique().tolist()


@pytest.mark.parametrize("length", [3, 60_000])
def test_a_mean_of_halves_whose_sum_is_out_of_range_is_their_mean(
    loopback: Callable[..., list[Any]], length: int
) -> None:
    assert loopback(2, mean_of, length) == [(torch.float16, [60000.0])] * 2


def mixed(transport: Transport) -> str:
    data = torch.ones(2, dtype=torch.float32 if transport.rank else torch.float16)
    with pytest.raises(CollectiveMismatch) as failure:
        reduce(data, transport)
    return str(failure.value)


def test_a_dtype_that_is_summed_in_another_is_still_another(loopback: Callable[..., list[Any]]) -> None:
    for text in loopback(2, mixed):
        assert "rank 0" in text
        assert "data float16[2]" in text
        assert "data float32[2]" in text
