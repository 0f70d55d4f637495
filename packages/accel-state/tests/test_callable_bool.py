import json
import pickle

import pytest
from accel_state.callable_bool import CallableBool


@pytest.mark.parametrize("value", [True, False])
def test_it_is_the_same_as_an_attribute_and_when_called(value: bool) -> None:
    """Decision 2, feature row S83: `is_main_process` and `is_main_process()` are both in the wild."""
    truth = CallableBool(value)
    assert bool(truth) is value
    assert truth() is value
    assert truth == int(value)
    assert (not truth) is (not value)
    assert hash(truth) == hash(value)


def test_a_false_one_takes_the_other_branch_both_ways() -> None:
    """Decision 2: a method object would be true in `if accelerator.is_main_process:`."""
    no = CallableBool(False)
    assert [1 if no else 2, 1 if no() else 2] == [2, 2]


def test_it_prints_as_a_bool() -> None:
    assert (repr(CallableBool(1)), str(CallableBool(0)), f"{CallableBool(1)}") == ("True", "False", "True")


def test_it_counts_and_combines_as_a_bool_does() -> None:
    assert sum([CallableBool(True), CallableBool(False), CallableBool(True)]) == 2
    assert ("a", "b")[CallableBool(True)] == "b"
    assert CallableBool("anything") == CallableBool(True)
    assert int(CallableBool(17)) == 1


def test_it_survives_pickle_and_json() -> None:
    copy = pickle.loads(pickle.dumps(CallableBool(True)))
    assert (copy, copy()) == (True, True)
    assert json.loads(json.dumps({"main": CallableBool(True)})) == {"main": 1}
