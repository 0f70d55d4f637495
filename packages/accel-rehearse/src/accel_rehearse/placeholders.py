"""Give a script numbers in place of those that only a device could compute, and find where they decide something."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_rehearse.refusal import is_of_script, line_of
from accel_rehearse.training_loop import tree_of

#: the number that stands for an unknown number: no division by it fails, and its logarithm is finite
VALUE = 1.0


class Placeholders:
    """The source of numbers that are not known."""

    def __init__(self) -> None:
        #: the lines where an unknown number decides what is done next
        self.steered: dict[str, str] = {}

    def number(self, func: Any, tensor: torch.Tensor) -> Any:
        """Return the number of an operation on fakes that returns a number of Python.

        Args:
            func: The operation.
            tensor: Its tensor.
        """
        if func is torch.ops.aten.equal.default:
            return True
        if func is torch.ops.aten.is_nonzero.default or tensor.dtype == torch.bool:
            return False
        return VALUE if tensor.is_floating_point() else int(VALUE)

    def steer(self, *, only_in_conditions: bool = False) -> bool:
        """Return False in place of a condition that is not known, and note the line of the script that asks.

        A library that asks has its own reasons, which are about numbers that are not finite: it is not noted.

        Args:
            only_in_conditions: Note the line only if it is the condition of a statement.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == __file__:
            frame = frame.f_back
        if frame is not None and is_of_script(frame.f_code.co_filename):
            file, number = frame.f_code.co_filename, frame.f_lineno
            if _is_condition(file, number) or not (only_in_conditions or _chooses(file, number)):
                self.steered[line_of(frame)] = linecache.getline(file, number).strip()
        return False

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let fake tensors give placeholders inside the block."""
        tensor_class: Any = torch.Tensor

        def replaced(name: str, placeholder: Callable[[torch.Tensor], Any]) -> Any:
            original = getattr(tensor_class, name)

            def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                local = getattr(tensor, "_local_tensor", tensor)
                return placeholder(local) if isinstance(local, FakeTensor) else original(tensor, *args, **kwargs)

            return patch.object(tensor_class, name, method)

        with (
            replaced("item", self._item),
            replaced("__bool__", self._bool),
            replaced("__float__", lambda tensor: self._exact(float(VALUE))),
            replaced("__int__", lambda tensor: self._exact(int(VALUE))),
            replaced("__index__", lambda tensor: self._exact(int(VALUE))),
            replaced("tolist", lambda tensor: _nested(self._item(tensor), tensor.shape)),
            replaced("isfinite", _finite),
            replaced("numpy", _zeros_of_numpy),
            replaced("__array__", _zeros_of_numpy),
        ):
            yield

    def _item(self, tensor: torch.Tensor) -> Any:
        return UnknownNumber.of(VALUE if tensor.dtype != torch.bool else 0.0, self)

    def _bool(self, tensor: torch.Tensor) -> bool:
        return self.steer()

    def _exact(self, value: Any) -> Any:
        """Return a number of which Python keeps no type, and note the line if it decides at once."""
        self.steer(only_in_conditions=True)
        return value


@final
class UnknownNumber(float):
    """A number that is not known: it can be printed, summed up and averaged, and what compares it is noted."""

    _placeholders: Placeholders

    @classmethod
    def of(cls, value: float, placeholders: Placeholders) -> UnknownNumber:
        """Return an unknown number that stands as a number.

        Args:
            value: The number.
            placeholders: What is told if it decides something.
        """
        number = cls(value)
        number._placeholders = placeholders
        return number

    def __bool__(self) -> bool:
        return self._placeholders.steer()

    def __hash__(self) -> int:
        return float.__hash__(self)

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


def _computed(name: str) -> Callable[..., Any]:
    compute = getattr(float, name)

    def method(self: UnknownNumber, *others: Any) -> Any:
        result = compute(self, *others)
        return result if result is NotImplemented else UnknownNumber.of(float(result), self._placeholders)

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg", "abs", "pow", "round"):
    setattr(UnknownNumber, f"__{_name}__", _computed(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(UnknownNumber, f"__{_name}__", lambda self, other: UnknownNumber.of(0.0, self._placeholders))


def _nested(value: Any, shape: tuple[int, ...]) -> Any:
    return value if not shape else [_nested(value, shape[1:]) for _ in range(shape[0])]


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return that numbers are finite, as a real tensor, so that what asks for it goes on."""
    return torch.ones(tensor.shape, dtype=torch.bool, device="cpu")


def _zeros_of_numpy(tensor: torch.Tensor, *_: object, **__: object) -> Any:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu").numpy()


def _is_condition(file: str, line: int) -> bool:
    """Return whether a line is of the condition of a statement."""
    tests = [getattr(node, "test", None) for node in ast.walk(tree_of(file))]
    return any(isinstance(test, ast.expr) and test.lineno <= line <= (test.end_lineno or 0) for test in tests)


def _chooses(file: str, line: int) -> bool:
    """Return whether a line only chooses the larger or smaller of numbers."""
    calls = (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call) and node.lineno == line)
    return any(isinstance(call.func, ast.Name) and call.func.id in ("max", "min", "sorted") for call in calls)
