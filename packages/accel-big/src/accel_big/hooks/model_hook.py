"""Add hooks to modules and remove them. The forward of a module keeps its name and signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


class ModelHook:
    """A hook around the forward of a module. The base class does nothing."""

    #: the forward runs without gradients
    no_grad = False

    def init_hook(self, module: M) -> M:
        """Return the module, when the hook is added to it."""
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the forward gets.

        Args:
            module: Module that is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Return the result that the caller gets."""
        return output

    def forward_failed(self, module: nn.Module) -> None:
        """Act in place of `post_forward` if the forward raises."""

    def detach_hook(self, module: M) -> M:
        """Return the module, when the hook is removed from it."""
        return module


class SequentialHook(ModelHook):
    """A sequence of hooks, run in their order before the forward and after it."""

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = hooks
        self.no_grad = any(hook.no_grad for hook in hooks)

    def init_hook(self, module: M) -> M:
        """Add all hooks."""
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments after all hooks. If a hook raises, those before it learn that the forward failed.

        Args:
            module: Module that is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        done = 0
        try:
            for hook in self.hooks:
                args, kwargs = hook.pre_forward(module, *args, **kwargs)
                done += 1
        finally:
            for hook in self.hooks[:done] if done < len(self.hooks) else ():
                hook.forward_failed(module)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Return the result after all hooks."""
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def forward_failed(self, module: nn.Module) -> None:
        """Call all hooks."""
        for hook in self.hooks:
            hook.forward_failed(module)

    def detach_hook(self, module: M) -> M:
        """Remove all hooks."""
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


def add_hook_to_module(module: M, hook: ModelHook, append: bool = False) -> M:
    """Put a hook around the forward of a module.

    Args:
        module: Module to change in place.
        hook: Hook to add.
        append: Keep a hook that is there, and run it first; otherwise the new hook replaces it.

    Returns:
        The module that `init_hook` of the hook returns.
    """
    present = hook_of(module)
    if present is not None:
        remove_hook_from_module(module, detach=not append)
    module = hook.init_hook(module)
    if present is not None and append:
        hook = SequentialHook(present, hook)
    own = module.__dict__.get("forward")  # a forward that somebody set on the instance
    forward: Callable[..., Any] = module.forward
    module.__dict__.update(_hf_hook=hook, _old_forward=forward, _own_forward=own)
    module.__dict__["forward"] = functools.update_wrapper(functools.partial(_forward, module), forward)
    return module


def _forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    hook: ModelHook = module._hf_hook
    args, kwargs = hook.pre_forward(module, *args, **kwargs)
    returned = False
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not hook.no_grad):
            output = module._old_forward(*args, **kwargs)
        returned = True
    finally:
        if not returned:
            hook.forward_failed(module)
    return hook.post_forward(module, output)


def hook_of(module: nn.Module) -> ModelHook | None:
    """Return the hook around the forward of a module, or None."""
    return module.__dict__.get("_hf_hook")


def remove_hook_from_module(module: M, recurse: bool = False, *, detach: bool = True) -> M:
    """Remove the hook of a module, whose forward is as before.

    Args:
        module: Module to change in place.
        recurse: Remove the hooks of all modules inside as well.
        detach: Let the hook restore what it has changed; otherwise weights stay offloaded.

    Returns:
        The same module.
    """
    hook = hook_of(module)
    if hook is not None:
        if detach:
            hook.detach_hook(module)
        own = module.__dict__.pop("_own_forward")
        for name in ("_hf_hook", "_old_forward", "forward"):
            del module.__dict__[name]
        if own is not None:
            module.__dict__["forward"] = own
    for child in module.children() if recurse else ():
        remove_hook_from_module(child, recurse, detach=detach)
    return module


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Remove the hooks of a module and of all modules inside."""
    remove_hook_from_module(module, recurse=True)
