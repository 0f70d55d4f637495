"""Compute sizes of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel_big import compute_module_sizes
from torch import nn


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
