"""Give a script numbers in place of those that only a device could compute, and find where they decide something."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, final
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_rehearse.nested_tensors import local
from accel_rehearse.refusal import is_of_script, line_of
from accel_rehearse.training_loop import tree_of


@dataclass
class Placeholders:
    """The source of numbers that are not known.

    Args:
        refusals: List that takes what cannot be rehearsed: the places where an unknown number decides.
    """

    refusals: list[tuple[str, str, str]]

    def steer(self, frame: FrameType) -> bool:
        """Return False in place of a condition that is not known, and note the line of a statement that asks.

        A library that asks has its own reasons, which are about numbers that are not finite: it is not noted. Nor is
        what only chooses the larger or smaller of numbers.

        Args:
            frame: Frame that asks.
        """
        for node in ast.walk(tree_of(frame.f_code.co_filename)) if is_of_script(frame) else ():
            test: Any = getattr(node, "test", None)  # of a statement that decides
            if test and test.lineno <= frame.f_lineno <= test.end_lineno:
                what = f"a number that only the device knows decides what is done next: {ast.unparse(test)}"
                self.refusals.append((what, line_of(frame), "decide by the number of steps, or by values of the data"))
        return False

    def patches(self) -> list[Any]:
        """Return patches by which fake tensors give placeholders."""
        tensor_class: Any = torch.Tensor

        def replaced(name: str, placeholder: Callable[..., Any]) -> Any:
            original = getattr(tensor_class, name)

            def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                return (placeholder if isinstance(local(tensor), FakeTensor) else original)(tensor, *args, **kwargs)

            return patch.object(tensor_class, name, method)

        steered = patch.object(UnknownNumber, "__bool__", lambda _: self.steer(sys._getframe(1)))
        return [steered, *(replaced(name, placeholder) for name, placeholder in _PLACEHOLDERS.items())]


@final
class UnknownNumber(float):
    """A number that is not known: it can be printed, summed up and averaged, and what it decides is noted."""


def _computed(compute: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: UnknownNumber, *others: Any) -> Any:
        result = compute(self, *others)
        return result if result is NotImplemented else UnknownNumber(result)

    return method


_COMPUTED = "add radd sub rsub mul rmul truediv rtruediv neg abs pow round lt le gt ge eq ne"
for _name in _COMPUTED.split():
    setattr(UnknownNumber, f"__{_name}__", _computed(getattr(float, f"__{_name}__")))


def _item(tensor: Any, *_: object) -> UnknownNumber:
    # no division by it fails, and its logarithm is finite
    return UnknownNumber(tensor.dtype != torch.bool)


def _nested(value: Any, shape: tuple[int, ...]) -> Any:
    return value if not shape else [_nested(value, shape[1:]) for _ in range(shape[0])]


#: what methods of tensors return; a finite number is a real tensor, so that what asks for it goes on
_PLACEHOLDERS: dict[str, Callable[..., Any]] = {
    "item": _item,
    "__format__": lambda tensor, form: format(repr(tensor) if tensor.ndim else float(_item(tensor)), form),
    "tolist": lambda tensor: _nested(_item(tensor), tensor.shape),
    "isfinite": lambda tensor: torch.ones(tensor.shape, dtype=torch.bool, device="cpu"),
    "numpy": lambda tensor, **_: torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu").numpy(),
}
