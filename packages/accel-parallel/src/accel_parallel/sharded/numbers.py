"""Let scripts read whole values of sharded tensors, or write whole values into their rows, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from types import EllipsisType
from typing import Any, NoReturn, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

#: in-place methods that change no numbers
_HARMLESS = {"detach_", "rename_", "requires_grad_", "share_memory_"}
#: the meshes of prepared models: what is computed of their parameters is there too, and tensors of others are not
_MESHES: set[DeviceMesh] = set()


def guard_numbers(parameters: Iterable[torch.Tensor]) -> None:
    """Let tensors on the meshes of sharded parameters refuse what would read or write a part, and let `[]` write.

    Gradients, norms and rows are made by torch, as objects of its class: so it is the class that has to know.
    """
    _MESHES.update(parameter.device_mesh for parameter in parameters if isinstance(parameter, DTensor))
    _guard_class()


@cache
def _guard_class() -> None:
    """Make torch's class of sharded tensors refuse parts, for tensors on meshes of prepared models."""
    # torch gives `float(tensor)` of a part, such as the norm of a part of a gradient. Rows are copies of it, so that
    # `tensor[2].zero_()` has no effect. Source: `OpDispatcher._custom_op_handlers` of torch 2.9 to 2.13.
    sharded: Any = DTensor
    sharded._op_dispatcher._custom_op_handlers[torch.ops.aten._local_scalar_dense.default] = _number
    for name in ("__getitem__", "select", "narrow"):
        setattr(sharded, name, _taking(getattr(torch.Tensor, name)))
    sharded.__setitem__ = _write
    for name in dir(torch.Tensor):
        in_place = name.endswith("_") and not name.startswith("_") and name not in _HARMLESS
        if in_place or (name.startswith("__i") and name.removeprefix("__i") in _OPERATORS) or name == "__setitem__":
            setattr(_Rows, name, partial(_refuse, name))


_OPERATORS = {"add__", "sub__", "mul__", "truediv__", "floordiv__", "mod__", "pow__", "and__", "or__", "xor__"}


class _Rows(DTensor):
    """The rows of a sharded tensor, as a copy of them."""

    __slots__ = ()


def _refuse(name: str, *_: Any) -> NoReturn:
    raise RuntimeError(
        f"{name} of rows of a sharded tensor: torch has copied them from all ranks, and the tensor would not change."
        " Write into the tensor itself, on all ranks, as in tensor[2] = numbers"
    )


def _number(number_of: Callable[..., Any], args: tuple[Any, ...], _: Any) -> Any:
    tensor = args[0]
    mesh = tensor.device_mesh
    if mesh in _MESHES and mesh.size() > 1 and not all(placement.is_replicate() for placement in tensor.placements):
        raise RuntimeError(
            f"a number of a sharded tensor ({', '.join(map(str, tensor.placements))}): each rank has a part of it. Take"
            " tensor.full_tensor().item() on all ranks, or accelerator.reduce(tensor, 'mean')"
        )
    return number_of(tensor._local_tensor)


def _taking(take: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(take)
    def taken(tensor: DTensor, *index: Any) -> Any:
        rows = take(tensor, *index)
        # a tensor or list as an index makes a copy of every tensor
        views = all(
            isinstance(one, int | slice | EllipsisType | None)
            for item in index
            for one in (item if isinstance(item, tuple) else (item,))
        )
        if views and type(rows) is DTensor and tensor.device_mesh in _MESHES and _storage(rows) != _storage(tensor):
            rows.__class__ = _Rows
        return rows

    return taken


def _storage(tensor: DTensor) -> int:
    return cast("int", tensor._local_tensor.untyped_storage()._cdata)


def _write(tensor: DTensor, index: Any, numbers: Any) -> None:
    """Write into a sharded tensor. All ranks must call with like values."""
    if tensor.device_mesh not in _MESHES:
        torch.Tensor.__setitem__(tensor, index, numbers)
        return
    if tensor.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a parameter is written into: do so under torch.no_grad()")
    parts = tuple(map(_whole, index)) if isinstance(index, tuple) else _whole(index)
    whole = tensor.full_tensor().clone()
    whole[parts] = _whole(numbers)
    tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None))


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value
