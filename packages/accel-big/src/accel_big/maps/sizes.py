"""Compute the bytes of each module of a model, and find names that share memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_big.estimate_options import DTYPES, SHORT

Dtype = torch.dtype | str


def memory_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that is equal for tensors of the same memory, also on the meta device, whose addresses are all 0."""
    if not is_plain(tensor):
        return (id(tensor),)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return True for a strided tensor that is neither quantised nor a wrapper of other tensors."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not is_traceable_wrapper_subclass(tensor)


def may_be_offloaded(model: nn.Module, *, buffers: bool) -> list[str]:
    """Return the names of the tensors of a model that may be elsewhere: plain ones, and of them `buffers` if asked."""
    stays = () if buffers else dict(model.named_buffers(remove_duplicate=False))
    return [name for name, tensor in named_tensors(model).items() if is_plain(tensor) and name not in stays]


def prefixes(name: str) -> Iterator[str]:
    """Yield the names of the modules that hold `name`, from the whole model ("") to `name` itself."""
    yield ""
    end = name.find(".")
    while end >= 0:
        yield name[:end]
        end = name.find(".", end + 1)
    if name:
        yield name


def compute_module_sizes(
    model: nn.Module,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    buffers_only: bool = False,
) -> dict[str, int]:
    """Return the size of every module and tensor of a model by name. The model is "".

    Tied weights count under their first name.

    Args:
        model: Model to measure; it may be on the meta device.
        dtype: Dtype in which floating-point tensors are counted, if it is smaller than theirs.
        special_dtypes: Dtypes of tensors by name.
        buffers_only: Count only buffers.

    Raises:
        CannotRun: A dtype is unknown.

    Units:
        Bytes.
    """
    sizes = {name: 0 for name, _ in model.named_modules(remove_duplicate=False)}
    bits = None if dtype is None else bits_of(dtype)
    special = {name: bits_of(kind) for name, kind in (special_dtypes or {}).items()}
    seen: set[tuple[object, ...]] = set()
    tensors = dict(model.named_buffers(remove_duplicate=False)) if buffers_only else named_tensors(model)
    for name, tensor in tensors.items():
        key = memory_key(tensor)
        size = 0 if key in seen else _size(tensor, special.get(name), bits)
        seen.add(key)
        for prefix in prefixes(name):
            sizes[prefix] = sizes.get(prefix, 0) + size
    return sizes


def _size(tensor: torch.Tensor, special: int | None, bits: int | None) -> int:
    own = tensor.numel() * tensor.element_size()
    if special is not None:
        return -(-tensor.numel() * special // 8)
    if bits is None or not tensor.is_floating_point():
        return own
    return min(own, -(-tensor.numel() * bits // 8))


def bits_of(dtype: Dtype) -> int:
    """Return the bits of a value of a dtype, which may be one that only estimates know, such as int4.

    Raises:
        CannotRun: There is no such dtype.
    """
    if isinstance(dtype, torch.dtype):
        return dtype.itemsize * 8
    name = dtype.removeprefix("torch.")
    if SHORT.get(name, name) in DTYPES:
        return DTYPES[SHORT.get(name, name)]
    known = vars(torch).get(name)
    if isinstance(known, torch.dtype):
        return known.itemsize * 8
    raise CannotRun(f"sizes in dtype {dtype!r}", [f"there is no such dtype (known: {', '.join(DTYPES)})"])


def find_tied_parameters(model: nn.Module) -> list[list[str]]:
    """Return the groups of names under which a model has parameters of one memory, in sorted order."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(memory_key(parameter), []).append(name)
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def no_split_classes(model: nn.Module, named: list[str] | tuple[str, ...] | str | None) -> frozenset[str]:
    """Return the names of classes whose modules stay on one device: those `named`, or those that the model names."""
    if named is not None:
        return frozenset((named,) if isinstance(named, str) else named)
    return frozenset(
        str(name) for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()
    )
