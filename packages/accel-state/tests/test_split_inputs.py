from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, final

import numpy as np
import pytest
import torch
from accel_state.split_inputs import bounds, split
from accel_testing import assert_same_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.toy_models import RangeDataset
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

QUICK = settings(derandomize=True, deadline=None)
LENGTHS = st.integers(0, 40)
SIZES = st.integers(1, 9)


def items_of(data: Any) -> list[int]:
    return [int(data[position]) for position in range(len(data))]


def pieces(inputs: Any, size: int, *, padding: bool = False) -> list[Any]:
    return [split(inputs, rank, size, padding=padding) for rank in range(size)]


@final
class Rows:
    """What `datasets.Dataset` offers: a slice of it is a dict of columns, and `select` gives a Rows."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice) -> dict[str, list[int]]:
        return {"column": self.rows[key]}

    def select(self, indices: Sequence[int]) -> "Rows":
        return Rows([self.rows[index] for index in indices])


def test_the_first_ranks_get_one_more() -> None:
    """Reference 2.7: 17 on 4 and 5 on 2."""
    assert [len(piece) for piece in pieces(list(range(17)), 4)] == [5, 4, 4, 4]
    assert pieces([0, 1, 2, 3, 4], 2) == [[0, 1, 2], [3, 4]]


def test_padding_repeats_the_last_item() -> None:
    """Reference 2.7: [1, 2, 3] on 2."""
    assert pieces([1, 2, 3], 2, padding=True) == [[1, 2], [3, 3]]
    assert pieces((1, 2, 3), 2, padding=True) == [(1, 2), (3, 3)]
    assert pieces("abc", 2, padding=True) == ["ab", "cc"]


def test_a_rank_without_an_item_is_padded_with_the_last_of_all() -> None:
    assert pieces([7, 8], 4, padding=True) == [[7], [8], [8], [8]]
    assert pieces([7, 8], 4) == [[7], [8], [], []]


def test_nothing_is_split_into_nothing() -> None:
    assert pieces([], 3, padding=True) == [[], [], []]


def test_tensors_are_split_and_padded_along_the_first_dim() -> None:
    rows = torch.arange(6).view(3, 2)
    assert_same_numbers(pieces(rows, 2), [rows[:2], rows[2:]], atol=0)
    assert_same_numbers(pieces(rows, 2, padding=True), [rows[:2], rows[[2, 2]]], atol=0)
    assert_same_numbers(pieces(rows, 4, padding=True), [rows[0:1], rows[1:2], rows[2:3], rows[2:3]], atol=0)


def test_numpy_arrays_are_padded_with_items_and_not_added_to() -> None:
    assert [piece.tolist() for piece in pieces(np.array([1, 2, 3]), 2, padding=True)] == [[1, 2], [3, 3]]


def test_a_range_is_padded_into_a_list() -> None:
    assert pieces(range(3), 2, padding=True) == [range(0, 2), [2, 2]]


def test_each_value_of_a_mapping_is_split() -> None:
    batch = {"a": [1, 2, 3], "b": torch.tensor([4, 5, 6])}
    first, second = pieces(batch, 2, padding=True)
    assert_same_numbers(first, {"a": [1, 2], "b": torch.tensor([4, 5])}, atol=0)
    assert_same_numbers(second, {"a": [3, 3], "b": torch.tensor([6, 6])}, atol=0)
    assert list(batch) == ["a", "b"]
    assert batch["a"] == [1, 2, 3]


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType])
def test_a_mapping_keeps_its_type(kind: Callable[..., Any]) -> None:
    second: Any = split(kind({"a": [1, 2, 3]}), 1, 2)
    assert type(second) is kind
    assert second["a"] == [3]


def test_a_defaultdict_keeps_its_factory_and_the_original_its_items() -> None:
    whole: defaultdict[str, list[int]] = defaultdict(list, a=[1, 2])
    second = split(whole, 1, 2)
    assert second == {"a": [2]}
    assert second["new"] == []
    assert whole == {"a": [1, 2]}


def test_a_mapping_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match=r"when its values have one length, found {'a': 2, 'b': 1}"):
        split({"a": [1, 2], "b": [3]}, 0, 2)


def test_a_dataset_is_split_by_select() -> None:
    assert [piece.rows for piece in pieces(Rows([1, 2, 3]), 2)] == [[1, 2], [3]]
    assert [piece.rows for piece in pieces(Rows([1, 2, 3]), 2, padding=True)] == [[1, 2], [3, 3]]
    assert [piece.rows for piece in pieces(Rows([1, 2]), 3, padding=True)] == [[1], [2], [2]]


@final
class Selection:
    """What can be selected from, and no more."""

    def __len__(self) -> int:
        return 5

    def select(self, indices: Sequence[int]) -> Sequence[int]:
        return indices


def test_what_can_select_is_asked_for_a_range_and_need_have_no_items() -> None:
    assert pieces(Selection(), 2) == [range(0, 3), range(3, 5)]
    assert pieces(Selection(), 2, padding=True) == [range(0, 3), [3, 4, 4]]


def test_a_torch_dataset_is_split_into_subsets_and_not_read() -> None:
    whole = RangeDataset(5)
    first, second = pieces(whole, 2)
    assert type(first) is type(second) is Subset
    assert first.dataset is whole
    assert whole.reads == []
    assert items_of(first) == [0, 1, 2]
    assert items_of(second) == [3, 4]
    assert items_of(pieces(whole, 2, padding=True)[1]) == [3, 4, 4]
    assert [list(piece.indices) for piece in pieces(RangeDataset(2), 3, padding=True)] == [[0], [1], [1]]
    assert [len(piece) for piece in pieces(RangeDataset(2), 3)] == [1, 1, 0]


def test_a_dataset_of_tensors_stays_a_dataset() -> None:
    (_, second) = pieces(TensorDataset(torch.arange(3), torch.arange(3) * 10), 2)
    assert [tuple(map(int, second[position])) for position in range(len(second))] == [(2, 20)]


def test_a_dataset_in_a_mapping_is_split() -> None:
    second = split({"data": RangeDataset(4), "names": list("abcd")}, 1, 2)
    assert items_of(second["data"]) == [2, 3]
    assert second["names"] == ["c", "d"]


@final
class SizedStream(IterableDataset[int]):
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_a_single_process_gets_the_very_input() -> None:
    nothing_to_split = object()
    assert split(nothing_to_split, 0, 1, padding=True) is nothing_to_split


@pytest.mark.parametrize("inputs", [{1, 2}, 3, iter([1, 2]), SizedStream(), Dataset()])
def test_what_has_no_pieces_is_refused(inputs: object) -> None:
    with pytest.raises(TypeError, match=f"a {type(inputs).__name__} has no pieces; pass a list, tuple, tensor, map"):
        split(inputs, 0, 2)


@QUICK
@given(LENGTHS, SIZES)
def test_pieces_are_contiguous_and_cover_everything(length: int, size: int) -> None:
    found = [bounds(length, rank, size) for rank in range(size)]
    assert [start for start, _ in found] == [0, *[stop for _, stop in found[:-1]]]
    assert found[-1][1] == length
    lengths = [stop - start for start, stop in found]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@QUICK
@given(st.lists(st.integers()), SIZES)
def test_all_pieces_together_are_the_input(items: list[int], size: int) -> None:
    assert [item for piece in pieces(items, size) for item in piece] == items
    assert [item for piece in pieces(tuple(items), size) for item in piece] == items
    assert [item for piece in pieces(Rows(items), size) for item in piece.rows] == items
    assert [item for piece in pieces({"k": items}, size) for item in piece["k"]] == items


@QUICK
@given(LENGTHS, SIZES)
def test_tensors_arrays_and_lists_are_cut_alike(length: int, size: int) -> None:
    items = [7 * i for i in range(length)]
    for padding in (False, True):
        expected = pieces(items, size, padding=padding)
        assert [piece.tolist() for piece in pieces(torch.tensor(items), size, padding=padding)] == expected
        assert [piece.tolist() for piece in pieces(np.array(items), size, padding=padding)] == expected
        assert [piece.rows for piece in pieces(Rows(items), size, padding=padding)] == expected


@QUICK
@given(st.lists(st.integers(), min_size=1), SIZES)
def test_padded_pieces_are_equally_long_and_begin_with_the_real_ones(items: list[int], size: int) -> None:
    if size == 1:
        return
    for padded, real in zip(pieces(items, size, padding=True), pieces(items, size), strict=True):
        assert len(padded) == -(-len(items) // size)
        assert padded[: len(real)] == real
        assert set(padded[len(real) :]) <= {items[-1]}
