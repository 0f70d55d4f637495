"""Compute sizes of layers, of buffers and of tied modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_big import compute_module_sizes
from accel_checkpoint import size_in_bytes
from torch import nn


def convert_file_size_to_int(size: int | str) -> int:
    """Return the number of bytes, which may be none, in a size such as 500, "10GB" or "2 GiB"."""
    return size_in_bytes(size, least=0)


def get_max_layer_size(
    modules: Sequence[tuple[str, nn.Module]], module_sizes: Mapping[str, int], no_split_module_classes: Sequence[str]
) -> tuple[int, list[str]]:
    """Return the size of the largest layer, and the names of all layers of this size.

    A layer has no modules inside it, or is of a class that must not be split.

    Args:
        modules: The names and modules to look through.
        module_sizes: The size of each module by its name, as `compute_module_sizes` returns it.
        no_split_module_classes: The names of classes that must not be split.
    """
    layers: dict[str, int] = {}
    waiting = list(modules)
    while waiting:
        name, module = waiting.pop(0)
        parts = list(module.named_children()) if isinstance(module, nn.Module) else []
        if not parts or type(module).__name__ in no_split_module_classes:
            layers[name] = module_sizes[name]
        else:
            waiting = [(f"{name}.{part}", child) for part, child in parts] + waiting
    largest = max(layers.values(), default=0)
    return largest, [name for name, size in layers.items() if size == largest]


def calculate_maximum_sizes(model: nn.Module) -> tuple[int, tuple[int, list[str]]]:
    """Return the bytes of a model, and those of its largest layer with the names of all layers of this size."""
    sizes = compute_module_sizes(model)
    unsplit = getattr(model, "_no_split_modules", None) or []
    return sizes[""], get_max_layer_size(list(model.named_children()), sizes, unsplit)


def compute_module_total_buffer_size(
    model: nn.Module, dtype: Any = None, special_dtypes: Mapping[str, Any] | None = None
) -> int:
    """Return the bytes of all buffers of a model.

    Args:
        model: The model.
        dtype: Dtype in which floating-point tensors are counted, if it is smaller than theirs.
        special_dtypes: Dtypes of tensors by name.
    """
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)[""]


def get_module_size_with_ties(
    tied_params: Sequence[str],
    module_size: int,
    module_sizes: Mapping[str, int],
    modules_to_treat: Sequence[tuple[str, nn.Module]],
) -> tuple[int, list[str], list[nn.Module]]:
    """Return the size of a module together with those that are tied to it, and the names and modules of these.

    Args:
        tied_params: The names of parameters of other modules that the module shares.
        module_size: The size of the module.
        module_sizes: The size of each module and parameter by its name.
        modules_to_treat: The names and modules to look for the parameters in.
    """
    tied = [next(each for each in modules_to_treat if name.startswith(f"{each[0]}.")) for name in tied_params]
    more = [module_sizes[module] - module_sizes[name] for name, (module, _) in zip(tied_params, tied, strict=True)]
    return module_size + sum(more), [name for name, _ in tied], [module for _, module in tied]
