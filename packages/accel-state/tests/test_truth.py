import json
import pickle

import pytest
from accel_state.truth import Truth


@pytest.mark.parametrize("value", [True, False])
def test_it_is_the_same_as_an_attribute_and_when_called(value: bool) -> None:
    """Decision 2, feature row S83: `is_main_process` and `is_main_process()` are both in the wild."""
    truth = Truth(value)
    assert bool(truth) is value
    assert truth() is value
    assert truth == int(value)
    assert (not truth) is (not value)
    assert hash(truth) == hash(value)


def test_a_false_one_takes_the_other_branch_both_ways() -> None:
    """Decision 2: a method object would be true in `if accelerator.is_main_process:`."""
    no = Truth(False)
    assert [1 if no else 2, 1 if no() else 2] == [2, 2]


def test_it_prints_as_a_bool() -> None:
    assert (repr(Truth(1)), str(Truth(0)), f"{Truth(1)}") == ("True", "False", "True")


def test_it_counts_and_combines_as_a_bool_does() -> None:
    assert sum([Truth(True), Truth(False), Truth(True)]) == 2
    assert ("a", "b")[Truth(True)] == "b"
    assert Truth("anything") == Truth(True)
    assert int(Truth(17)) == 1


def test_it_survives_pickle_and_json() -> None:
    copy = pickle.loads(pickle.dumps(Truth(True)))
    assert (copy, copy()) == (True, True)
    assert json.loads(json.dumps({"main": Truth(True)})) == {"main": 1}
