"""Call a method before each step of any optimizer, as long as the object of the method exists."""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any, Protocol, cast, final

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class BeforeStep(Protocol):
    """A bound method that takes an optimizer."""

    def __call__(self, optimizer: Optimizer, /) -> object:
        """Act before a step of the optimizer."""


@final
class _WeakHook:
    """A hook of torch that keeps the object of its method alive no longer than others do."""

    def __init__(self, method: MethodType) -> None:
        # a WeakMethod would make the bound method anew at each step
        self.object, self.function = weakref.ref(method.__self__), method.__func__

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        if (there := self.object()) is not None:
            self.function(there, optimizer)


def call_before_steps(method: BeforeStep) -> RemovableHandle:
    """Register a bound method that torch calls before each step of any optimizer.

    torch alone would keep the object of the method for ever. Hooks whose object is gone are removed by the next call of
    this function. They cannot be removed earlier: the garbage collector may run while torch goes through its hooks.

    Args:
        method: The bound method.

    Returns:
        A handle whose `remove` ends the calls.
    """
    handle = register_optimizer_step_pre_hook(_WeakHook(cast("MethodType", method)))
    hooks: dict[int, Any] = handle.hooks_dict_ref() or {}
    for key, hook in list(hooks.items()):
        if isinstance(hook, _WeakHook) and hook.object() is None:
            del hooks[key]
    return handle
