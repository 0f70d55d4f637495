"""The bytes of each module of a model, and which names share memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from accel_state.errors import CannotRun
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_big.estimate_options import DTYPES, SHORT

Dtype = torch.dtype | str


def memory_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """A key that is equal for tensors of the same memory, also on the meta device, where all addresses are 0."""
    if not is_plain(tensor):
        return (id(tensor),)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is numbers and no more. A quantised one may be of a class that holds other tensors."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not is_traceable_wrapper_subclass(tensor)


def named_tensors(module: nn.Module, *, recurse: bool = True) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module by all their names; tied weights have several."""
    parameters = module.named_parameters(recurse=recurse, remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(recurse=recurse, remove_duplicate=False))}


def prefixes(name: str) -> Iterator[str]:
    """The names of the modules that hold what is called `name`, the whole model ("") first, and `name` last."""
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
    """The size of every module and tensor by name; "" is the model. Tied weights count under their first name.

    Numbers with a point are counted in `dtype` if that is smaller than theirs; `special_dtypes` has those of names.

    Units: bytes.
    Raises: CannotRun for a dtype that is not known.
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
    """The bits of a number in a dtype, which may be one of those that only estimates know, such as int4.

    Raises: CannotRun for other words.
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
    """The groups of names under which a model has one parameter, or parameters of one memory, in sorted order."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(memory_key(parameter), []).append(name)
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def no_split_classes(model: nn.Module, named: list[str] | tuple[str, ...] | str | None) -> frozenset[str]:
    """The names of classes whose modules stay on one device: those `named`, else what the model itself says."""
    if named is not None:
        return frozenset((named,) if isinstance(named, str) else named)
    return frozenset(
        str(name) for module in model.modules() for name in vars(type(module)).get("_no_split_modules") or ()
    )
