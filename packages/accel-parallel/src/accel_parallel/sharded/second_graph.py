"""Raise in backwards through backwards of models whose weights are not kept for them."""

from typing import Any

import torch
from torch import nn

from accel_parallel.computed_tensors import computed_tensors


def refuse_second_graph(module: nn.Module, inputs: Any, result: Any) -> Any:
    """Let a backward from the result of a forward raise if it builds a graph of its own.

    It is a forward hook. The backward raises RuntimeError.

    Args:
        module: Module that was called.
        inputs: Its arguments.
        result: Its result.

    Returns:
        The result.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        for tensor in computed_tensors(result):
            tensor.register_hook(_refuse)  # type: ignore[no-untyped-call] # of torch
    return result


def _refuse(_: torch.Tensor) -> None:
    # gradients have a graph only if they are computed with create_graph=True
    if torch.is_grad_enabled():
        raise RuntimeError(
            "create_graph=True through a sharded model: a backward of that graph needs weights that are freed after the"
            " first one. Compute such a penalty on gradients with strategy='ddp'"
        )
