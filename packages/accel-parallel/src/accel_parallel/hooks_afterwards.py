"""Call hooks of gradients when the gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, final

import torch


@final
class HooksAfterwards:
    """A context that calls the hooks of parameters after a backward and its exchange, where torch calls them before.

    So a hook that clips, or that steps, has the gradient of the whole batch. A hook of `register_hook` is for one
    backward: if there is a gradient of another already, torch calls it, with the gradient of this rank.

    Args:
        parameters: Parameters with hooks.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._hooked: list[tuple[Any, Any, Any, Any]] = []
        # torch has given hooks no types
        one: Any
        for one in parameters:
            hooks = one._backward_hooks if one.grad is None else None
            self._hooked.append((one, hooks, one._post_accumulate_grad_hooks, _look(one)))

    def __enter__(self) -> None:
        for parameter, hooks, grown_hooks, _ in self._hooked:
            if hooks:
                parameter._backward_hooks = None
            if grown_hooks:
                parameter._post_accumulate_grad_hooks = {}  # None would leave them

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for parameter, hooks, grown_hooks, _ in self._hooked:
            if hooks:
                parameter._backward_hooks = hooks
            if grown_hooks:
                parameter._post_accumulate_grad_hooks = grown_hooks
        if error is not None:
            return
        for parameter, hooks, grown_hooks, before in self._hooked:
            if _look(parameter) == before:
                continue
            for hook in list((hooks or {}).values()):
                result = hook(parameter.grad)
                if result is not None:
                    parameter.grad = result
            for hook in list((grown_hooks or {}).values()):
                hook(parameter)


def _look(parameter: torch.Tensor) -> tuple[int, int] | None:
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
