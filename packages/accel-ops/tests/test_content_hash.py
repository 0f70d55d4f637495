"""What digests of values tell apart, and what they do not."""

from array import array
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from accel_ops.content_hash import digest_of, positions
from hash_seeds import outputs
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(derandomize=True, deadline=None)


@QUICK
@given(st.integers(0, 10**12), st.integers(1, 300))
def test_positions_reach_from_the_first_to_the_last_without_a_gap(length: int, wanted: int) -> None:
    found = positions(length, wanted)
    assert found == sorted(set(found))
    assert len(found) <= wanted + 2
    if length <= wanted:
        assert found == list(range(length))
    else:
        assert (found[0], found[-1]) == (0, length - 1)
        gaps = [after - before for before, after in pairwise(found)]
        assert max(gaps) <= 2 * (length // wanted + 1)


def test_positions_do_not_keep_to_one_column_of_many_pictures() -> None:
    columns = {position % 28 for position in positions(60_000 * 28 * 28, 256)}
    assert len(columns) > 20


@pytest.mark.parametrize(
    "value", [[], (), {}, set(), range(0), torch.empty(0, 3), np.empty(0), 3, "text", None, object()]
)
def test_what_is_empty_or_no_container_has_no_digest(value: object) -> None:
    assert digest_of(value) is None


def test_the_same_numbers_in_any_kind_of_sequence_are_the_same() -> None:
    kinds: list[Any] = [list(range(500)), tuple(range(500)), range(500), array("q", range(500))]
    assert len({digest_of(kind) for kind in kinds}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        ([1, 2], [1, 2, 3]),
        ([0x12, 0x3], [0x1, 0x23]),
        (["a", "b"], ["ab", ""]),
        ([b"a"], [b"b"]),
        ([True], [None]),
        (["/data/1.png"], ["/data/2.png"]),
        (["data/1.png"], ["other/1.png"]),
        (["a" * 9999 + "b"], ["a" * 9999 + "c"]),
        ([[1, [2]]], [[1, [3]]]),
        ({"a": [1]}, {"a": [2]}),
        ({"a": [1]}, {"b": [1]}),
        ([{"a": 1}], [{"a": 2}]),
        ({1, 2}, {1, 3}),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.arange(6).view(2, 3), torch.arange(6).view(3, 2).t()),
        (torch.tensor(1.0), torch.tensor(2.0)),
        (np.array([1.0, 2.0]), np.array([1.0, 2.02])),
        (np.array(["a"]), np.array(["b"])),
        (np.array(["2020-01-01"], dtype="M8[D]"), np.array(["2020-01-02"], dtype="M8[D]")),
        (np.array([{"a": 1}], dtype=object), np.array([{"a": 2}], dtype=object)),
    ],
)
def test_what_differs_has_another_digest(one: Any, other: Any) -> None:
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["/here/1.png"], ["/there/1.png"]),
        (["C:\\here\\1.png"], ["D:\\there\\1.png"]),
        ({"rank": 0, "files": ["a"]}, {"files": ["a"], "rank": 1}),
        ({"inner": {"rank": 0}}, {"inner": {"rank": 1}}),
        (torch.tensor([1.0, 1.125]), torch.tensor([1.0, 1.125]) * (1 + 1e-7)),
        (np.array([1.0, 0.0]), np.array([1.0, 1e-17])),
        ([0.1 + 0.2], [0.3]),
    ],
)
def test_what_differs_by_machine_or_process_has_the_same_digest(one: Any, other: Any) -> None:
    assert digest_of(one) == digest_of(other)


def test_a_pair_that_was_swapped_at_either_end_is_noticed() -> None:
    swapped = list(range(10**5))
    swapped[0], swapped[-1] = swapped[-1], swapped[0]
    assert digest_of(swapped) != digest_of(range(10**5))


ORDERS = """
from accel_ops.content_hash import digest_of
print(digest_of({"b", "a", "c"}), digest_of({"b": ["a"], "a": {"x", "y"}}), digest_of(["a", ("b", 2.5)]))
"""


def test_digests_do_not_depend_on_the_process() -> None:
    told = outputs(ORDERS)
    assert len(told) == 1
    assert len(set(told.pop().split())) == 3


def test_tables_of_pandas_differ_by_their_rows() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": [f"text {at}" for at in range(99)], "label": range(99)})
    other = table.iloc[::-1]
    assert digest_of(table) == digest_of(table.copy())
    assert digest_of(table) != digest_of(other)
    assert digest_of(table) != digest_of(other.reset_index(drop=True))
    assert digest_of(table["text"]) != digest_of(other["text"])
    assert digest_of(table.index) != digest_of(other.index)
    assert digest_of(table[:0]) is None


def test_tables_of_arrow_differ_by_their_rows() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": [f"text {at}" for at in range(99)], "label": list(range(99))})
    assert digest_of(table) == digest_of(pyarrow.concat_tables([table[:40], table[40:]]))
    assert digest_of(table) != digest_of(table.take(list(range(99))[::-1]))
