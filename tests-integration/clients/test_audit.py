"""The audit of names beside Accelerate itself: a name that is called the same takes the same arguments."""

import enum
import inspect
import os
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from accel_names.lazy_names import table

#: arguments that are passed by position, and have other names here
BY_POSITION = {"data", "func", "generator", "obj", "tensor"}
#: about one vendor's product, and not followed
OF_VENDORS = {"offload_8bit_bnb", "XPU", "MUSA", "HPU", "NPU", "NEURON", "MLU", "SDAA"}


def peer(name: str) -> Any:
    """Accelerate's object of a name; the test is skipped where Accelerate is not installed."""
    try:
        if version("accelerate") == "1.15.0":
            modules = ("accelerate.utils", "accelerate", "accelerate.utils.deepspeed")
            return next(
                getattr(import_module(module), name) for module in modules if hasattr(import_module(module), name)
            )
    except PackageNotFoundError:
        pass
    pytest.skip("needs accelerate 1.15.0")


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


KNOWN = table()
SAME = sorted(set(KNOWN.homes) - set(KNOWN.different) - set(KNOWN.libraries) - KNOWN.vendors)


@pytest.mark.skipif("ACCEL_CLIENTS" not in os.environ, reason="nox -s clients has Accelerate")
@pytest.mark.parametrize("name", SAME)
def test_a_name_that_is_said_to_be_the_same_takes_the_same(name: str) -> None:
    """S175."""
    theirs, ours = peer(name), getattr(import_module("accel.utils"), name)
    if isinstance(theirs, type) and issubclass(theirs, enum.Enum):
        lacking = {member.name for member in theirs if member.name not in dir(ours)}
    elif isinstance(theirs, type) and issubclass(theirs, Warning):  # Python tells no signature of these
        lacking = set() if issubclass(ours, theirs.__bases__) else {str(theirs.__base__)}
    elif callable(theirs):
        taken = parameters(ours)
        rest = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        lacking = {key for key, each in parameters(theirs).items() if each.kind not in variable and key not in taken}
        lacking = set() if rest else lacking - BY_POSITION
    else:
        lacking = set() if isinstance(theirs, list) or theirs == ours else {repr(theirs)}
        lacking |= set(theirs) - set(ours) if isinstance(theirs, list) else set()
    assert lacking - OF_VENDORS == set()
