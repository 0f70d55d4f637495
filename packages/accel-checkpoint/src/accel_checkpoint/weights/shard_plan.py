"""Divide a state dict into files. Tensors that share all memory are stored once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from accel_checkpoint.pieces import held_part, is_distributed


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A division of tensors into files, in which nothing is copied.

    Args:
        files: Tensors of each file, in order.
        aliases: For a name that shares the tensor of another, the name under which it is stored.
        total_bytes: Size of all tensors.
    """

    files: dict[str, dict[str, torch.Tensor]]
    aliases: dict[str, str]
    total_bytes: int

    def aliases_in(self, file: str) -> dict[str, str]:
        """Return the aliases of the tensors in `file`."""
        return {alias: name for alias, name in self.aliases.items() if name in self.files[file]}


def plan_shards(
    state: Mapping[str, torch.Tensor], *, stem: str, suffix: str, max_bytes: int, apart: Collection[str] = ()
) -> ShardPlan:
    """Divide tensors into files, in order, with at most `max_bytes` each. A larger tensor has a file of its own.

    Args:
        state: Tensors by name.
        stem: Beginning of the names of files, such as "model".
        suffix: End of the names of files, such as ".safetensors".
        max_bytes: Largest file.
        apart: Tensors that come first, in files without other tensors.
    """
    state = {name: state[name] for name in sorted(state, key=lambda name: name not in apart)} if apart else state
    aliases: dict[str, str] = {}
    first_of: dict[tuple[object, ...], str] = {}
    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = total = 0
    for name, tensor in state.items():
        first = first_of.setdefault(_memory(name, tensor), name)
        if first != name and _is_same(tensor, state[first]):
            aliases[name] = first
            continue
        size = tensor.numel() * tensor.element_size()
        follows_apart = name not in apart and bool(shards[-1]) and next(iter(shards[-1])) in apart
        if shards[-1] and (follows_apart or filled + size > max_bytes):
            shards.append({})
            filled = 0
        shards[-1][name] = tensor.detach()
        filled += size
        total += size
    if len(shards) == 1:
        return ShardPlan({f"{stem}{suffix}": shards[0]}, aliases, total)
    names = [f"{stem}-{number:05d}-of-{len(shards):05d}{suffix}" for number in range(1, len(shards) + 1)]
    return ShardPlan(dict(zip(names, shards, strict=True)), aliases, total)


def _memory(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return (name,)
    if is_distributed(tensor):  # the part may be empty, and has no address then; all processes have to find the same
        part = held_part(tensor)
        return ("part", part.untyped_storage()._cdata, part.storage_offset(), tensor.dtype, tuple(tensor.shape))
    lazily = (tensor.is_conj(), tensor.is_neg())
    address = tensor.data_ptr() or tensor.untyped_storage()._cdata  # on XLA all addresses are 0
    return (tensor.device, address, tensor.dtype, tuple(tensor.shape), tensor.stride(), lazily)


def _is_same(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    # XLA gives a transposed or cut view the strides of the whole tensor: there only the numbers tell
    return is_distributed(tensor) or tensor.data_ptr() != 0 or torch.equal(tensor, first)
