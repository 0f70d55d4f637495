"""Convert picklable values to bytes and back, with plain tensors as their values.

A tensor of an accelerator is sent as values of the host, and arrives on the receiver's own accelerator: the index that
it had at the sender would be another process's.
"""

from __future__ import annotations

import copyreg
import ctypes
import io
import pickle
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def pack(value: object) -> bytes:
    """Return a value as bytes."""
    buffer = io.BytesIO()
    dump(pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL), value)
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """Return the value that `pack` was given, with tensors of this process."""
    return pickle.loads(packed)


def is_bare(value: Any) -> bool:
    """Return whether a value is a tensor with a dtype, a shape, a device and values, and nothing more."""
    torch: Any = sys.modules["torch"]
    if type(value) is not torch.Tensor or value.layout is not torch.strided or value.requires_grad:
        return False
    unlike_memory = value.is_quantized or value.is_nested or value.is_meta or value.is_conj() or value.is_neg()
    return not unlike_memory and not value.__dict__


def dump(packer: pickle.Pickler, value: object) -> None:
    """Write a value by a pickler that writes bare tensors as their values."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:  # without it there are no tensors
        packer.dispatch_table = copyreg.dispatch_table | {
            torch.Tensor: _reduced,
            torch.storage.TypedStorage: _reduced_storage,  # of subclasses of tensors, which torch reduces
        }
    packer.dump(value)


def _reduced(tensor: Any) -> Any:
    """Return how to make a tensor of its values: torch's own way takes a third of a millisecond."""
    torch: Any = sys.modules["torch"]
    if tensor.device.type not in ("cpu", "meta") and tensor.layout is torch.strided:
        # by torch's way the whole storage of a view would be copied to the host
        return _put, (tensor.device.type, tensor.detach().cpu(), tensor.requires_grad, tensor.__dict__)
    if not tensor.is_cpu or not is_bare(tensor) or not tensor.numel():
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    whole = tensor.contiguous()
    return _rebuilt, (ctypes.string_at(whole.data_ptr(), whole.nbytes), whole.dtype, tuple(whole.shape))


def _put(kind: str, host: torch.Tensor, requires_grad: bool, attributes: dict[str, Any]) -> torch.Tensor:
    """Return the tensor on the current accelerator of that type."""
    tensor = host.to(kind).requires_grad_(requires_grad)
    tensor.__dict__.update(attributes)
    return tensor


def _reduced_storage(storage: Any) -> Any:
    torch: Any = sys.modules["torch"]
    memory = storage._untyped_storage
    if memory.device.type in ("cpu", "meta"):
        return storage.__reduce__()
    content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(memory.cpu())
    return _put_storage, (memory.device.type, content, storage.dtype)


def _put_storage(kind: str, content: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return the storage on the current accelerator of that type."""
    import torch

    made: Any = torch.storage.TypedStorage
    return made(wrap_storage=content.to(kind).untyped_storage(), dtype=dtype, _internal=True)


def _rebuilt(numbers: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(numbers), dtype=dtype).view(shape)
