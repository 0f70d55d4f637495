"""Calls a method before each step of any optimizer, as long as the method's object is there."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class BeforeStep(Protocol):
    """A bound method of an optimizer."""

    def __call__(self, optimizer: Optimizer, /) -> object:
        """Is called before the step."""


def call_before_steps(method: BeforeStep) -> RemovableHandle:
    """Lets torch call the bound method before each step; torch itself would keep the object of the method for ever."""
    alive = weakref.WeakMethod(method)

    def call(optimizer: Optimizer, *_: Any) -> None:
        if (bound := alive()) is not None:
            bound(optimizer)

    handle = register_optimizer_step_pre_hook(call)
    weakref.finalize(method.__self__, handle.remove)  # type: ignore[attr-defined] # which bound methods have
    return handle
