"""Batches of tensors and texts are cut between samples, and joined again."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from accel_ops.batch_size import can_be_cut, cut, joined, samples_in
from hypothesis import given
from hypothesis import strategies as st

Pair = namedtuple("Pair", ["ids", "names"])  # without types, as scripts have it


def batch_of(count: int, first: int = 0) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "ids": torch.tensor(list(numbers)).view(count, 1),
        "name": [f"n{number}" for number in numbers],
        "more": ({"key": tuple(map(str, numbers))}, torch.tensor(list(numbers))),
        "pair": Pair(torch.tensor(list(numbers)), [str(number).encode() for number in numbers]),
    }


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_parts_of_a_whole_are_what_was_joined(counts: list[int]) -> None:
    bounds = [sum(counts[:place]) for place in range(len(counts) + 1)]
    parts = [batch_of(count, first) for count, first in zip(counts, bounds, strict=False)]
    whole = joined(parts)
    assert can_be_cut(whole)
    assert samples_in(whole) == sum(counts)
    assert str(whole) == str(batch_of(sum(counts)))
    for part, begin, end in zip(parts, bounds, bounds[1:], strict=False):
        assert str(cut(whole, slice(begin, end))) == str(part)


def test_texts_alone_have_samples_too() -> None:
    assert (samples_in({"text": ["a", "b", "c"]}), can_be_cut({"text": ["a", "b", "c"]})) == (3, True)
    assert samples_in(["a", "b"]) == 2
    assert samples_in({"number": 3}) == 1


@pytest.mark.parametrize(
    "batch",
    [
        {"ids": torch.ones(4), "name": ["a", "b", "c"]},
        {"ids": torch.ones(4), "loss": torch.ones(())},
        {"ids": torch.ones(4), "kind": "train"},
        [{"id": 1}, {"id": 2}],
        {},
    ],
    ids=str,
)
def test_a_part_without_an_entry_for_each_sample_cannot_be_cut(batch: Any) -> None:
    assert not can_be_cut(batch)
