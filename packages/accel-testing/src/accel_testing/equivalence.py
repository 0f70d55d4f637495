"""Are two trees of numbers the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor


def assert_same_numbers(actual: Any, expected: Any, *, atol: float, rtol: float = 0.0) -> None:
    """Passes when both trees have the same keys and shapes, and `|actual - expected| <= atol + rtol * |expected|`.

    Mappings, sequences, tensors, numpy arrays and plain values may be nested; whole numbers and bools must be equal,
    NaN equals NaN, devices and the kinds of containers may differ.

    Raises: AssertionError that names the first place, in the order of `expected`, that differs, and by how much.
    """
    __tracebackhide__ = True
    _compare(actual, expected, "", atol, rtol)


def _differ(path: str, what: str) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(f"{path or 'the value'} differs: {what}")


def _compare(actual: Any, expected: Any, path: str, atol: float, rtol: float) -> None:
    __tracebackhide__ = True
    actual, expected = _plain(actual), _plain(expected)
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        _compare_tensors(actual, expected, path, atol, rtol)
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            missing = [key for key in expected if key not in actual]
            extra = [key for key in actual if key not in expected]
            _differ(path, f"missing keys {missing}, unexpected keys {extra}")
        for key in expected:
            _compare(actual[key], expected[key], f"{path}[{key!r}]", atol, rtol)
    elif _is_sequence(actual) and _is_sequence(expected):
        if len(actual) != len(expected):
            _differ(path, f"{len(actual)} items, expected {len(expected)}")
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            _compare(one, other, f"{path}[{index}]", atol, rtol)
    elif _is_number(actual) and _is_number(expected):
        _compare_tensors(torch.tensor(actual, dtype=_widest(actual)), torch.tensor(expected, dtype=_widest(expected)),
                         path, atol, rtol)  # fmt: skip
    elif actual != expected:
        _differ(path, f"found {actual!r}, expected {expected!r}")


def _plain(value: Any) -> Any:
    # numpy need not be installed to recognise its arrays
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
    return value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | complex) or (isinstance(value, int) and abs(value) < 2**63)


def _widest(value: bool | int | float | complex) -> torch.dtype:
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
    return next((dtype for kind, dtype in kinds.items() if isinstance(value, kind)), torch.complex128)


def _compare_tensors(actual: Tensor, expected: Tensor, path: str, atol: float, rtol: float) -> None:
    __tracebackhide__ = True
    if actual.shape != expected.shape:
        _differ(path, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.dtype != expected.dtype:
        _differ(path, f"dtype {actual.dtype}, expected {expected.dtype}")
    one, other = _comparable(actual), _comparable(expected)
    exact = not (one.is_floating_point() or one.is_complex())
    same = one == other if exact else torch.isclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
    if bool(same.all()):
        return
    wrong = ~same
    # a NaN or an infinity on one side is the largest difference there is
    distance = (one.double() - other.double() if exact else one - other).abs().nan_to_num(nan=torch.inf)
    distance = distance.masked_fill(same, -1.0)
    worst = int(distance.flatten().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), one.shape))
    allowed = "exactly equal" if exact else f"atol={atol:g}, rtol={rtol:g}"
    _differ(
        path,
        f"by up to {float(distance.flatten()[worst]):.6g} ({allowed}) in {int(wrong.sum())} of {one.numel()} numbers; "
        f"at {index} found {one[index].item()!r}, expected {other[index].item()!r}",
    )


def _comparable(tensor: Tensor) -> Tensor:
    dense = tensor.detach().cpu()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    if dense.is_complex():
        return dense.to(torch.complex128)
    return dense.double() if dense.is_floating_point() else dense
