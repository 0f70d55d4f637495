"""Compare two trees of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import keystr, tree_flatten_with_path


def assert_same_numbers(actual: Any, expected: Any, *, atol: float, rtol: float = 0.0) -> None:
    """Raise unless both trees have the same keys and shapes, and `|actual - expected| <= atol + rtol * |expected|`.

    Mappings, sequences, tensors, numpy arrays and plain values may be nested. Whole numbers and bools must be equal,
    NaN equals NaN, devices and the kinds of containers may differ.

    Args:
        actual: Tree that was computed.
        expected: Tree to compare it with.
        atol: Absolute tolerance of floating-point numbers.
        rtol: Relative tolerance of floating-point numbers.

    Raises:
        AssertionError: They differ. The error has the first place, in the order of `expected`, and by how much.
    """
    __tracebackhide__ = True
    here, there = _leaves(actual), _leaves(expected)
    if here.keys() != there.keys():
        missing, extra = ([*one.keys() - other.keys()] for one, other in ((there, here), (here, there)))
        raise AssertionError(f"the trees differ: missing {sorted(missing)}, unexpected {sorted(extra)}")
    for path, leaf in there.items():
        try:
            _compare(here[path], leaf, atol, rtol)
        except AssertionError as error:
            raise AssertionError(f"{path or 'the value'} differs: {error}") from None


def _leaves(tree: Any) -> dict[str, Any]:
    return {keystr(path): _plain(leaf) for path, leaf in tree_flatten_with_path(tree)[0]}


def _plain(value: Any) -> Any:
    # numpy need not be installed to recognise its arrays
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
    return value


def _compare(actual: Any, expected: Any, atol: float, rtol: float) -> None:
    __tracebackhide__ = True
    kinds = (Tensor, int | float | complex)
    if any(isinstance(actual, kind) and isinstance(expected, kind) for kind in kinds):
        if isinstance(expected, int) or (isinstance(expected, Tensor) and not _has_fractions(expected)):
            atol = rtol = 0.0
        assert_close(actual, expected, atol=atol, rtol=rtol, equal_nan=True, check_device=False, check_layout=False)
    elif actual != expected:
        raise AssertionError(f"found {actual!r}, expected {expected!r}")


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
