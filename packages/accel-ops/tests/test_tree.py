from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from accel_ops import (
    concatenate,
    convert_to_fp32,
    find_batch_size,
    get_shape,
    honor_type,
    ignorant_find_batch_size,
    is_namedtuple,
    is_torch_tensor,
    listify,
    recursively_apply,
    slice_tensors,
)
from accel_ops.tree import leaves
from accel_testing import assert_same_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from named_pairs import Pair

QUICK = settings(derandomize=True, deadline=None)


Triple = namedtuple("Triple", "a b c")  # the other way to make one


class Batch(UserDict[str, Any]):
    """As BatchEncoding: a mapping whose constructor knows more than its items."""

    def __init__(self, data: dict[str, Any], encodings: str) -> None:
        super().__init__(data)
        self.encodings = encodings


def double(data: Any) -> Any:
    return recursively_apply(lambda tensor: 2 * tensor, data)


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.text("abc", min_size=1, max_size=2)
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.builds(Pair, inner, inner)
            | st.builds(Triple, inner, inner, inner)
            | st.dictionaries(names, inner, max_size=3)
            | st.dictionaries(names, inner, max_size=3).map(OrderedDict)
            | st.dictionaries(names, inner, max_size=3).map(UserDict)
            | st.dictionaries(names, inner, max_size=3).map(lambda items: defaultdict(list, items))
            | st.dictionaries(names, inner, max_size=3).map(MappingProxyType)
            | st.dictionaries(names, inner, max_size=3).map(lambda items: Batch(items, "fast"))
        ),
        max_leaves=8,
    )


def same(one: Any, other: Any) -> bool:
    """Whether two trees have equal types, keys and leaves."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "keys"):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@QUICK
@given(nested(st.integers()))
def test_every_structure_survives_with_its_types(data: Any) -> None:
    """Feature row S55."""
    there = recursively_apply(str, data, test_type=lambda value: isinstance(value, int))
    assert same(recursively_apply(int, there, test_type=lambda value: isinstance(value, str)), data)


@QUICK
@given(nested(st.integers()))
def test_the_leaves_are_visited_in_the_order_of_their_paths(data: Any) -> None:
    seen: list[int] = []
    recursively_apply(seen.append, data, test_type=lambda value: isinstance(value, int))
    paths, values = [path for path, _ in leaves(data)], [leaf for _, leaf in leaves(data)]
    assert seen == values
    assert len(set(paths)) == len(paths)
    assert [eval(f"data{path}", {"data": data}) for path in paths] == values


def test_the_types_that_batches_have_are_kept() -> None:
    """Feature row S55, reference 2.7."""
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    data = Pair([one, (one,)], {"k": UserDict(a=one), "d": defaultdict(int, b=one), "o": OrderedDict(c=one)})
    done = double(data)
    assert isinstance(done, Pair)
    assert (type(done.second["k"]), type(done.second["o"])) == (UserDict, OrderedDict)
    assert_same_numbers(done.first, [two, (two,)], atol=0)
    assert_same_numbers((done.second["k"]["a"], done.second["d"]["b"], done.second["o"]["c"]), (two, two, two), atol=0)
    assert done.second["d"]["new"] == 0
    assert one.item() == 1


def test_what_a_mapping_carries_besides_its_items_is_kept() -> None:
    """Feature row S55: a BatchEncoding."""
    batch = Batch({"ids": torch.tensor([1])}, encodings="fast")
    done = double(batch)
    assert (type(done), done.encodings, done["ids"].item()) == (Batch, "fast", 2)
    assert batch["ids"].item() == 1


def test_other_leaves_stay_the_very_same() -> None:
    marker = object()
    done = double([marker, "text", None, 3])
    assert done[0] is marker
    assert done[1:] == ["text", None, 3]


def test_other_leaves_are_refused_on_request_with_their_type() -> None:
    with pytest.raises(TypeError) as refused:
        recursively_apply(torch.abs, [torch.ones(1), {"k": "text"}], error_on_other_type=True)
    assert str(refused.value) == "abs takes tensors in lists, tuples, named tuples and mappings; found a str"


def test_arguments_are_passed_on() -> None:
    assert recursively_apply(torch.Tensor.add, [torch.tensor(1)], torch.tensor(2), alpha=3)[0].item() == 7


def test_a_named_tuple_is_told_from_a_tuple() -> None:
    assert [is_namedtuple(value) for value in (Pair(1, 2), Triple(1, 2, 3), (1, 2), [1])] == [True, True, False, False]
    assert honor_type(Pair(0, 0), iter([1, 2])) == Pair(1, 2)
    assert honor_type([0], (1, 2)) == [1, 2]


def test_a_parameter_is_a_tensor_and_an_array_is_not() -> None:
    assert is_torch_tensor(torch.nn.Parameter(torch.ones(1)))
    assert not is_torch_tensor(torch.ones(1).numpy())


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (torch.ones(3, 2), 3),
        ({"a": {"b": torch.ones(4)}, "c": torch.ones(9)}, 4),
        ([(torch.ones(5, 1),), torch.ones(2)], 5),
        (Pair(torch.ones(0, 7), 1), 0),
    ],
)
def test_the_batch_size_is_the_length_of_the_first_tensor(data: Any, size: int) -> None:
    assert find_batch_size(data) == size
    assert ignorant_find_batch_size(data) == size


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([], ValueError, "cannot find the batch size of an empty list"),
        ({}, ValueError, "cannot find the batch size of an empty dict"),
        ({"a": "text"}, TypeError, r"found a str at data\['a'\]"),
        ([[3]], TypeError, r"found a int at data\[0\]\[0\]"),
        (torch.tensor(1.0), TypeError, "has no dims"),
    ],
)
def test_data_without_a_batch_size_is_refused(data: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        find_batch_size(data)
    assert ignorant_find_batch_size(data) is None


def test_shapes_take_the_place_of_tensors() -> None:
    assert get_shape({"a": torch.ones(2, 3), "b": (torch.tensor(1),)}) == {"a": [2, 3], "b": ([],)}
    with pytest.raises(TypeError, match="found a str"):
        get_shape(["text"])


def test_numbers_take_the_place_of_tensors() -> None:
    data = {"a": torch.tensor([[1, 2]]), "h": torch.tensor([1.5], dtype=torch.bfloat16), "s": "text"}
    assert listify(data) == {"a": [[1, 2]], "h": [1.5], "s": "text"}
    assert listify(torch.tensor(2.0, requires_grad=True)) == 2.0


def test_a_slice_is_taken_of_every_tensor() -> None:
    data = {"a": torch.arange(6), "b": [torch.arange(6).view(6, 1), "text"]}
    sliced = slice_tensors(data, slice(1, 3), process_index=1, num_processes=2)
    assert listify(sliced) == {"a": [1, 2], "b": [[[1], [2]], "text"]}


def test_structures_are_joined_leaf_by_leaf() -> None:
    """Reference 2.7."""
    parts = [Pair([torch.tensor([i])], UserDict(k=torch.tensor([[i, i]]))) for i in range(3)]
    joined = concatenate(parts)
    assert (type(joined), type(joined.second)) == (Pair, UserDict)
    assert listify(joined.first) == [[0, 1, 2]]
    assert joined.second["k"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert concatenate([part.second for part in parts], dim=1)["k"].tolist() == [[0, 0, 1, 1, 2, 2]]


def test_a_single_structure_is_returned_as_it_is() -> None:
    only = "not even a tensor"
    assert concatenate([only]) is only


def test_what_does_not_join_is_refused() -> None:
    with pytest.raises(TypeError, match="only tensors can be joined, found a str"):
        concatenate(["a", "b"])
    with pytest.raises(RuntimeError, match="must match"):
        concatenate([torch.ones(1, 2), torch.ones(1, 3)])


def test_only_half_precision_becomes_fp32() -> None:
    half, full = [torch.float16, torch.bfloat16], [torch.float32, torch.float64, torch.int64]
    data = Pair([torch.ones(1, dtype=dtype) for dtype in half + full], "text")
    done = convert_to_fp32(data)
    assert [tensor.dtype for tensor in done.first] == [torch.float32, torch.float32, *full]
    assert all(one is other for one, other in zip(done.first[2:], data.first[2:], strict=True))
    assert done.second == "text"
