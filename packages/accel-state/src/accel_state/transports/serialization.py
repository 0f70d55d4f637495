"""Any picklable value as bytes, with plain tensors as their bare numbers.

A tensor of an accelerator travels as numbers of the host, and arrives on the receiver's own accelerator: the index that
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
    """The value as bytes."""
    buffer = io.BytesIO()
    packer = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    torch: Any = sys.modules.get("torch")
    if torch is not None:  # without it there are no tensors
        packer.dispatch_table = copyreg.dispatch_table | {
            torch.Tensor: _reduced,
            torch.storage.TypedStorage: _reduced_storage,  # of subclasses of tensors, which torch reduces
        }
    packer.dump(value)
    return buffer.getvalue()


def unpack(packed: bytes) -> Any:
    """The value that `pack` was given; its tensors are the receiver's own."""
    return pickle.loads(packed)


def _reduced(tensor: Any) -> Any:
    """A tensor as its bare numbers: torch's own way takes a third of a millisecond."""
    torch: Any = sys.modules["torch"]
    if tensor.device.type not in ("cpu", "meta") and tensor.layout is torch.strided:
        # by torch's way the whole storage of a view would be copied to the host
        return _put, (tensor.device.type, tensor.detach().cpu(), tensor.requires_grad, tensor.__dict__)
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.requires_grad or tensor.is_quantized:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if tensor.is_conj() or tensor.is_neg() or tensor.__dict__ or not tensor.numel():
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    whole = tensor.contiguous()
    return _rebuilt, (ctypes.string_at(whole.data_ptr(), whole.nbytes), whole.dtype, tuple(whole.shape))


def _put(kind: str, host: torch.Tensor, requires_grad: bool, attributes: dict[str, Any]) -> torch.Tensor:
    """The tensor on the accelerator of that kind that is current here."""
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
    """The storage on the accelerator of that kind that is current here."""
    import torch

    made: Any = torch.storage.TypedStorage
    return made(wrap_storage=content.to(kind).untyped_storage(), dtype=dtype, _internal=True)


def _rebuilt(numbers: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(numbers), dtype=dtype).view(shape)
