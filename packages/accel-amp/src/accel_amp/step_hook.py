"""Calls a method before each step of any optimizer, as long as the method's object is there."""

from __future__ import annotations

import weakref
from typing import Any, Protocol, final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class BeforeStep(Protocol):
    """A bound method of an optimizer."""

    def __call__(self, optimizer: Optimizer, /) -> object:
        """Is called before the step."""


@final
class _WeakHook:
    """A hook of torch that keeps the object of its method no longer alive than others do."""

    def __init__(self, method: BeforeStep) -> None:
        self.method = weakref.WeakMethod(method)

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        if (bound := self.method()) is not None:
            bound(optimizer)


def call_before_steps(method: BeforeStep) -> RemovableHandle:
    """Let torch call the bound method before each step; torch itself would keep the object of the method for ever.

    Hooks whose object is gone are removed by the next call. An object may go while torch goes through its hooks, when
    the garbage collector runs, and then none may be removed.
    """
    handle = register_optimizer_step_pre_hook(_WeakHook(method))
    hooks: dict[int, Any] = handle.hooks_dict_ref() or {}
    for key, hook in list(hooks.items()):
        if isinstance(hook, _WeakHook) and hook.method() is None:
            del hooks[key]
    return handle
