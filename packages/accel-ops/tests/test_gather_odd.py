"""Rare data: memory in any order, rare dtypes, empty tuples, what does not pickle."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from accel_comm import Transport
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import gather
from accel_testing import MakePool, assert_same_numbers
from named_pairs import Output

Loopback = Callable[..., list[Any]]


def gathered(transport: Transport, per_rank: Sequence[Any]) -> Any:
    return gather(per_rank[transport.rank], transport)


@pytest.mark.parametrize("empty", [(), Output(None, None)])
def test_a_tuple_without_numbers_stays_one(loopback: Loopback, empty: Any) -> None:
    """A4: the empty cache of an output, say."""
    for found in loopback(2, gathered, [{"x": torch.ones(1), "cache": empty}] * 2):
        assert type(found["cache"]) is type(empty)
        assert found["cache"] == empty


def waited_or_told(transport: Transport) -> str:
    try:
        gather([torch.ones(1), gather if transport.rank else lambda: 1], transport)
    except Exception as error:  # noqa: BLE001 - its kind is what matters
        return type(error).__name__
    return "no error"


def test_an_object_that_does_not_pickle_is_an_error_on_every_rank(loopback: Loopback) -> None:
    """Promise T25: no hang."""
    assert not {"BrokenBarrierError", "no error"} & set(loopback(2, waited_or_told))


GAPS = torch.arange(40_000.0)[::2]
WAVE = torch.complex(torch.ones(20_000), torch.ones(20_000)).conj()


@pytest.mark.parametrize(
    ("x", "beside"),
    [
        (GAPS, 0),
        pytest.param(GAPS[:100], 10_000),
        pytest.param(torch.arange(6.0)[::5][:1], 10_000),
        (torch.arange(20_000).view(100, 200).t(), 0),
        (torch.arange(200).view(10, 20).t(), 10_000),
        (WAVE[:9], 0),
        (WAVE[:9], 10_000),
        (WAVE, 0),  # through gloo: below
        (WAVE.imag, 0),
        (WAVE.imag[:99].clone(), 10_000),
        (torch.ones(1).expand(60_000), 0),
    ],
)
def test_memory_in_any_order_travels_however_large_it_is(loopback: Loopback, x: torch.Tensor, beside: int) -> None:
    """A4: beside other tensors it shares a message, without them it has its own."""
    whole = torch.cat([x, x]).resolve_conj().resolve_neg()
    for found in loopback(2, gathered, [[x, torch.ones(beside)]] * 2):
        assert_same_numbers(found, [whole, torch.ones(2 * beside)], atol=0)


def test_conjugate_numbers_travel_through_gloo(world: MakePool) -> None:
    """A4."""
    for found in world(2).run(conjugate_gathered):
        assert_same_numbers(found, torch.cat([WAVE, WAVE]).resolve_conj(), atol=0)


def conjugate_gathered() -> Any:
    return gather(WAVE, TorchDist())


def halves(dtype: torch.dtype) -> list[bool]:
    transport = TorchDist()
    found = []
    for length in (3, 100_000):
        numbers = torch.arange(2 * length).remainder(7).to(dtype)
        whole = gather(numbers.view(2, length)[transport.rank], transport)
        found.append(whole.dtype == dtype and torch.equal(whole.view(torch.uint8), numbers.view(torch.uint8)))
    return found


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.float8_e4m3fn])
def test_a_large_tensor_of_a_rare_dtype_travels_as_a_small_one_does(world: MakePool, dtype: torch.dtype) -> None:
    """A4: sound is int16."""
    assert world(2).run(halves, dtype) == [[True, True]] * 2
