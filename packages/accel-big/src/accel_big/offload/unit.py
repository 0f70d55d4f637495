"""Move tensors of a module to a device together, for as long as the forward of the module runs."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

import torch
from accel_checkpoint.tensor_file import ALIGNMENT
from accel_checkpoint.weights.materialise import like_kind
from torch import nn

#: bytes of a page, and of the span of pages that are read by one operation
PAGE, SPAN = 1 << 12, 1 << 26


class Slot(NamedTuple):
    """A place for a parameter or buffer.

    Args:
        owner: Module that has the tensor.
        leaf: Name of the tensor there.
        key: Name of the tensor in the weights.
    """

    owner: nn.Module
    leaf: str
    key: str

    @property
    def tensors(self) -> dict[str, Any]:
        """The parameters or the buffers of the module: those that have the tensor."""
        return self.owner._parameters if self.leaf in self.owner._parameters else self.owner._buffers


@final
class OffloadedUnit:
    """A group of tensors that are on the meta device unless a forward needs them.

    Args:
        slots: Places of the tensors.
        weights: Their values by name.
        device: Device of the forward.
    """

    def __init__(self, slots: list[Slot], weights: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self.slots, self.weights, self.device = slots, weights, device
        self.users = 0
        named: list[torch.Tensor] = [slot.tensors[slot.leaf] for slot in slots]
        self.size = sum(tensor.numel() * tensor.element_size() for tensor in named)
        self._placeholders = [_placeholder(tensor) for tensor in named]
        self.remove()

    def read(self, *, ahead: bool = False) -> list[torch.Tensor]:
        """Read the values on the host, aligned as torch aligns its own, since products of torch round by the address.

        Args:
            ahead: Return only when the values are in memory, for another device pinned.
        """
        found: dict[str, torch.Tensor] = {}
        with torch.inference_mode(False), torch.no_grad():
            for slot in self.slots:
                if slot.key not in found:
                    found[slot.key] = self.weights[slot.key]
                    if self.device.type == "cpu" and found[slot.key].data_ptr() % ALIGNMENT:
                        found[slot.key] = _aligned(found[slot.key])
                    elif ahead and self.device.type == "cpu":
                        _touch(found[slot.key])
                    elif self.device.type != "cpu" and torch.accelerator.is_available():
                        found[slot.key] = found[slot.key].pin_memory()
        return [found[slot.key] for slot in self.slots]

    def install(self, tensors: list[torch.Tensor]) -> None:
        """Put values into the modules. They have no gradients, which nobody would keep."""
        with torch.inference_mode(False):
            for slot, tensor, placeholder in zip(self.slots, tensors, self._placeholders, strict=True):
                slot.tensors[slot.leaf] = like_kind(tensor, placeholder, trains=False)

    def remove(self) -> None:
        """Replace the values by placeholders."""
        for slot, placeholder in zip(self.slots, self._placeholders, strict=True):
            slot.tensors[slot.leaf] = placeholder

    def restore(self) -> None:
        """Put the values back for good. Tied weights are one tensor again."""
        for slot, tensor, placeholder in zip(self.slots, self.read(), self._placeholders, strict=True):
            if RESTORED not in placeholder.__dict__:
                fresh = like_kind(tensor.to(self.device).clone(), placeholder)
                fresh.__dict__.pop(MARK, None)
                placeholder.__dict__[RESTORED] = fresh
            slot.tensors[slot.leaf] = placeholder.__dict__[RESTORED]


#: in the attributes of a tensor whose numbers are elsewhere: what stands for it in the model
MARK = "_accel_offloaded"
#: in the attributes of what stood for a tensor: the tensor that took its place
RESTORED = "_accel_restored"


def offloaded_parameters(model: nn.Module) -> Iterator[str]:
    """Yield the names of the offloaded parameters of a model."""
    return (name for name, parameter in model.named_parameters() if MARK in parameter.__dict__)


def _placeholder(tensor: torch.Tensor) -> torch.Tensor:
    """Return the placeholder of an offloaded tensor: the same for all names of tied weights."""
    if MARK not in tensor.__dict__:
        if tensor.is_meta:
            tensor.__dict__[MARK] = tensor
            return tensor
        empty = like_kind(torch.empty_like(tensor, device="meta", requires_grad=False), tensor)
        # an optimizer that has the tensor would train what no model has
        tensor.__dict__[MARK] = empty.__dict__[MARK] = empty
    placeholder: torch.Tensor = tensor.__dict__[MARK]
    return placeholder


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor into pages of its own, which go back to the system with it. The heap would keep some."""
    pages = torch.frombuffer(mmap.mmap(-1, tensor.nbytes), dtype=tensor.dtype).view(tensor.shape)
    return pages.copy_(tensor)


def _touch(tensor: torch.Tensor) -> None:
    """Read a byte of each page, so that all pages are in memory."""
    numbers = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor
    for begin in range(0, tensor.nbytes, SPAN):
        numbers[begin : begin + SPAN : PAGE].sum()
