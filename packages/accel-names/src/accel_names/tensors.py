"""Describe, make and convert nested tensors, beside the functions of accel-ops."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from accel_ops import convert_to_fp32, recursively_apply
from accel_ops.tree import leaves
from torch import nn


class CannotPadNestedTensorWarning(UserWarning):
    """A warning that tensors of unequal rows in one tensor cannot be padded."""


@dataclass
class TensorInformation:
    """The shape and dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


def is_tensor_information(tensor_info: object) -> bool:
    """Return whether an object is the shape and dtype of a tensor."""
    return isinstance(tensor_info, TensorInformation)


def get_data_structure(data: Any) -> Any:
    """Return data with a TensorInformation in place of each tensor."""
    return recursively_apply(lambda tensor: TensorInformation(tensor.shape, tensor.dtype), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Return data with a tensor, of any content, in place of each TensorInformation."""

    def empty(about: TensorInformation) -> torch.Tensor:
        return torch.empty(*about.shape, dtype=about.dtype, device="cpu")

    return recursively_apply(empty, data_structure, test_type=is_tensor_information)


def find_device(data: Any) -> torch.device | None:
    """Return the device of the first tensor in nested data, or None if there is no tensor."""
    return next((leaf.device for _, leaf in leaves(data) if isinstance(leaf, torch.Tensor)), None)


class ConvertOutputsToFp32:
    """A function whose float16 and bfloat16 results come in float32."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        functools.update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        return self if instance is None else MethodType(self, instance)

    def __getstate__(self) -> dict[str, Any]:
        raise pickle.PicklingError(
            "a forward that converts its outputs cannot be pickled; take the model out first, by"
            " accelerator.unwrap_model(model, keep_fp32_wrapper=False)"
        )


@contextmanager
def GatheredParameters(  # the name that scripts know
    params: Iterable[nn.Parameter] | nn.Parameter,
    modifier_rank: int | None = None,
    fwd_module: nn.Module | None = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Keep parameters that DeepSpeed has divided whole in a block.

    Others are whole always.

    Args:
        params: The parameters.
        modifier_rank: The rank whose changes of them all ranks keep; None if none changes them.
        fwd_module: The module whose forward the block is part of.
        enabled: Whether they are gathered at all.

    Collective:
        Every rank must enter and leave the block.
    """
    listed = [params] if isinstance(params, nn.Parameter) else list(params)
    if not any(hasattr(parameter, "ds_id") for parameter in listed):
        yield
        return
    from importlib import import_module

    zero = import_module("deepspeed.zero")
    with zero.GatheredParameters(listed, modifier_rank=modifier_rank, fwd_module=fwd_module, enabled=enabled):
        yield
