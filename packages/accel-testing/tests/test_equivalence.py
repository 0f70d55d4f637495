from __future__ import annotations

import math
from collections import OrderedDict, UserDict
from typing import Any

import numpy
import pytest
import torch
from accel_testing import assert_same_numbers
from suite.toy_models import Mlp

ONES = torch.ones(2, 3)


def test_trees_that_agree_pass() -> None:
    tree = {"model": Mlp().state_dict(), "step": 3, "lr": [0.1, (1.0, None)], "name": "adam", "n": math.nan}
    same = tree | {"model": OrderedDict(Mlp().state_dict()), "lr": [0.1, [1.0, None]]}
    assert_same_numbers(tree, same, atol=0)


def test_the_first_tensor_that_differs_is_named_with_its_distance() -> None:
    expected = {"a": ONES, "b": [ONES, ONES * 2], "c": ONES}
    actual = {"c": ONES * 9, "b": [ONES, ONES * 2.5], "a": ONES}
    with pytest.raises(AssertionError, match=r"^\['b'\]\[1\] differs: [\s\S]*6 / 6 .*\n.* 0.5 at index \(0, 0\)"):
        assert_same_numbers(actual, expected, atol=0.1)


def test_the_worst_place_is_shown() -> None:
    actual = ONES.clone()
    actual[1, 2] = 4
    actual[0, 0] = 2
    with pytest.raises(AssertionError, match=r"2 / 6 .*\n.* 3.0 at index \(1, 2\)"):
        assert_same_numbers(actual, ONES, atol=0)


def test_tolerances_are_absolute_plus_relative_to_what_is_expected() -> None:
    assert_same_numbers(torch.tensor(110.0), torch.tensor(100.0), atol=1, rtol=0.09)
    with pytest.raises(AssertionError):
        assert_same_numbers(torch.tensor(110.1), torch.tensor(100.0), atol=1, rtol=0.09)


@pytest.mark.parametrize(
    ("actual", "expected", "words"),
    [
        ({"a": 1}, {"b": 1}, "missing .*'b'.*, unexpected .*'a'"),
        ([1], [1, 2], r"missing \['\[1\]'\], unexpected \[\]"),
        (torch.ones(3), torch.ones(4), r"'shape' do not match: torch.Size\(\[3\]\) != torch.Size\(\[4\]\)"),
        (torch.ones(3), torch.ones(3).double(), "'dtype' do not match: torch.float32 != torch.float64"),
        (torch.tensor([1]), torch.tensor([2]), r"difference: 1 at index \(0,\)"),
        (torch.tensor([True]), torch.tensor([False]), "difference: 1 "),
        (torch.tensor([math.nan]), torch.tensor([1.0]), "difference: nan"),
        (1, 2, "Expected 2 but got 1"),
        (1.0, 1.5, "Expected 1.5 but got 1.0"),
        ("a", "b", "found 'a', expected 'b'"),
        (None, torch.ones(1), "found None"),
        (True, 1, "found True, expected 1"),
        (1.0, True, "found 1.0, expected True"),
        (False, True, "found False, expected True"),
        (1.0, 1, "types do not match"),
        (torch.ones(2), 1.0, r"found tensor\(\[1., 1.\]\), expected 1.0"),
        (numpy.array([1.0, 2.0]), numpy.array([1.0, 2.5]), "difference: 0.5 "),
        (torch.ones(0), torch.ones(1), "shape"),
        ({"a": {}}, {}, r"unexpected \[\"\['a'\]\"\]"),
        ({"a": []}, {"a": [1]}, "missing"),
        (UserDict(a=torch.ones(2)), {"a": torch.zeros(2)}, "difference: 1.0 "),
        (torch.ones(1).bfloat16(), torch.tensor([1.2578125]).bfloat16(), "difference: 0.2578125 "),
    ],
)
def test_what_differs_is_said(actual: Any, expected: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert_same_numbers(actual, expected, atol=0.25)


def test_whole_numbers_have_no_tolerance() -> None:
    big = torch.tensor([2**53])
    with pytest.raises(AssertionError):
        assert_same_numbers(big + 1, big, atol=10)


def test_infinities_of_one_sign_are_equal() -> None:
    assert_same_numbers(torch.tensor([math.inf, -math.inf]), torch.tensor([math.inf, -math.inf]), atol=0)
    with pytest.raises(AssertionError):
        assert_same_numbers(torch.tensor([math.inf]), torch.tensor([-math.inf]), atol=0)


def test_empty_tensors_low_precision_and_sparse_tensors_are_compared() -> None:
    for tensor in (torch.ones(0), ONES.bfloat16(), ONES.to_sparse(), ONES.to(torch.complex64)):
        assert_same_numbers([tensor], [tensor.clone()], atol=0)
