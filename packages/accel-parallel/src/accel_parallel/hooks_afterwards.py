"""Call hooks of gradients when the gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def hooks_afterwards(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Call the hooks of parameters after a backward and its exchange in the block, where torch calls them before.

    So a hook that clips, or that steps, has the gradient of the whole batch. A hook of `register_hook` is for one
    backward: if there is a gradient of another already, torch calls it, with the gradient of this rank.

    Args:
        parameters: Parameters with hooks.
    """
    hooked: list[tuple[Any, Any, Any, Any]] = []
    one: Any  # torch has given hooks no types
    for one in parameters:
        hooks, grown_hooks = one._backward_hooks if one.grad is None else None, one._post_accumulate_grad_hooks
        hooked.append((one, hooks, grown_hooks, look(one)))
        if hooks:
            one._backward_hooks = None
        if grown_hooks:
            one._post_accumulate_grad_hooks = {}  # None would leave them
    try:
        yield
    finally:
        for one, hooks, grown_hooks, _ in hooked:
            if hooks:
                one._backward_hooks = hooks
            if grown_hooks:
                one._post_accumulate_grad_hooks = grown_hooks
    for one, hooks, grown_hooks, before in hooked:
        if look(one) == before:
            continue
        for hook in list((hooks or {}).values()):
            result = hook(one.grad)
            if result is not None:
                one.grad = result
        for hook in list((grown_hooks or {}).values()):
            hook(one)


def look(parameter: torch.Tensor) -> tuple[int, int] | None:
    """Return the identity and version of a gradient, which tell whether the gradient has changed."""
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
