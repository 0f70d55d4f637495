"""Compare two trees of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close


def assert_same_numbers(actual: Any, expected: Any, *, atol: float, rtol: float = 0.0) -> None:
    """Raise unless both trees have the same keys, shapes and dtypes, and values within a tolerance.

    Values are within it if `|actual - expected| <= atol + rtol * |expected|`. Mappings, sequences, tensors, NumPy
    arrays and Python numbers may be nested. Integers and bools must be equal, and NaN equals NaN. The types of Python
    numbers must be equal: 1 is not 1.0. Devices and the types of containers may differ. Everything else, such as a
    NumPy scalar or a tensor beside a number, is compared by `==`.

    Args:
        actual: Tree that was computed.
        expected: Tree to compare it with.
        atol: Absolute tolerance of floating-point numbers.
        rtol: Relative tolerance of floating-point numbers.

    Raises:
        AssertionError: They differ. The message names all missing and unexpected keys. If there are none, it names the
            first position that differs, in the order of `expected`, and the difference.
    """
    __tracebackhide__ = True
    here, there = dict(_leaves(actual, "")), dict(_leaves(expected, ""))
    if here.keys() != there.keys():
        missing, extra = ([*one.keys() - other.keys()] for one, other in ((there, here), (here, there)))
        raise AssertionError(f"the trees differ: missing {sorted(missing)}, unexpected {sorted(extra)}")
    for path, leaf in there.items():
        try:
            _compare(here[path], leaf, atol, rtol)
        except AssertionError as error:
            raise AssertionError(f"{path or 'the value'} differs: {error}") from None


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    # numpy need not be installed to recognise its arrays
    if type(tree).__module__ == "numpy" and type(tree).__name__ == "ndarray":
        tree = torch.from_numpy(tree.copy()) if tree.dtype.kind in "biufc" else tree.tolist()
    if isinstance(tree, Mapping):
        entries: Any = tree.items()
    elif isinstance(tree, Sequence) and not isinstance(tree, str | bytes):
        entries = enumerate(tree)
    else:
        yield path, tree
        return
    if not tree:
        yield path, ()  # an empty container of any kind
    for key, entry in entries:
        yield from _leaves(entry, f"{path}[{key!r}]")


def _compare(actual: Any, expected: Any, atol: float, rtol: float) -> None:
    __tracebackhide__ = True
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        if actual.dtype == expected.dtype:  # in half precision a tolerance would be rounded
            actual, expected = _widened(actual), _widened(expected)
        exact = not (expected.is_floating_point() or expected.is_complex())
    elif _is_number(actual) and _is_number(expected):
        exact = isinstance(expected, int)
    elif not _are_equal(actual, expected):
        raise AssertionError(f"found {actual!r}, expected {expected!r}")
    else:
        return
    if exact:
        atol = rtol = 0.0
    assert_close(actual, expected, atol=atol, rtol=rtol, equal_nan=True, check_device=False, check_layout=False)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, bool)


def _are_equal(actual: Any, expected: Any) -> bool:
    """Return whether values of any types are equal, where a bool is no number."""
    if isinstance(actual, bool) != isinstance(expected, bool) and _is_number(actual) != _is_number(expected):
        return False
    try:
        return bool(actual == expected)
    except RuntimeError:  # a tensor of several values, beside a number
        return False


def _widened(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128)
    return tensor.detach().double() if tensor.is_floating_point() else tensor
