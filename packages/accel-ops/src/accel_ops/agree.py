"""Ranks tell each other what they are about to exchange, before they do: a mismatch becomes an error, not a hang."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from accel_state import AccelError, Transport

from accel_ops.tree import leaves

# torch's own operations abort the process, or mix up bytes in silence, when shapes or dtypes differ.


class ShapeMismatch(AccelError, RuntimeError):
    """Ranks entered one collective call with data that does not fit together; the message has each rank's."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one rank is about to send at one place of its data; what is no tensor has the name of its type."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    def __str__(self) -> str:
        place = "" if self.device == "cpu" else f" on {self.device}"
        return f"data{self.path} {self.dtype.removeprefix('torch.')}{list(self.shape)}{place}"


Signature = tuple[Leaf, ...]


def signature(data: Any) -> Signature:
    """The path, shape and dtype of every leaf of `data`."""
    return tuple(
        Leaf(path, tuple(leaf.shape), str(leaf.dtype), leaf.device.type)
        if isinstance(leaf, torch.Tensor)
        else Leaf(path, (), type(leaf).__name__)
        for path, leaf in leaves(data)
    )


def exchange_signatures(operation: str, data: Any, transport: Transport) -> list[Signature] | None:
    """None when all ranks are about to exchange alike tensors; otherwise each rank's signature.

    Raises: ShapeMismatch when ranks call different operations.
    Collective: every rank of the group must call.
    """
    mine = signature(data)
    digest = hashlib.blake2b(repr((operation, mine)).encode(), digest_size=32).digest()
    theirs = transport.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
    if bool((theirs.view(transport.size, -1) == theirs[: len(digest)]).all()):
        return None
    everyone = transport.all_gather_objects((operation, mine))
    if len({name for name, _ in everyone}) > 1:
        calls = "".join(f"\n  rank {rank}: {name}" for rank, (name, _) in enumerate(everyone))
        raise ShapeMismatch(f"ranks called different operations at the same time:{calls}\ncall the same on every rank")
    return [leaves_of for _, leaves_of in everyone]


def require_alike(operation: str, data: Any, transport: Transport, *, advice: str) -> None:
    """Returns when all ranks are about to exchange tensors of equal shape and dtype.

    Raises: ShapeMismatch on every rank otherwise, with the table of ranks and shapes, and `advice`.
    Collective: every rank of the group must call.
    """
    everyone = exchange_signatures(operation, data, transport)
    if everyone is not None:
        raise ShapeMismatch(f"{operation} needs equal shapes and dtypes on all ranks, found{table(everyone)}\n{advice}")


def table(everyone: list[Signature]) -> str:
    """One line a rank: the leaves in which ranks differ, or all of them when only their order differs."""
    common = set.intersection(*(set(one) for one in everyone))
    if all(common.issuperset(one) for one in everyone):
        common = set()
    rows = []
    for rank, one in enumerate(everyone):
        different = [str(leaf) for leaf in one if leaf not in common]
        rows.append(f"\n  rank {rank}: {', '.join(different) or 'nothing else'}")
    return "".join(rows)
