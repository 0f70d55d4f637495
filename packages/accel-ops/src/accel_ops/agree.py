"""Compares what ranks are about to exchange, before they do: a mismatch becomes an error, not a hang."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accel_state import CollectiveMismatch, Transport, call_site
from accel_state.transports import Join, longest_of

from accel_ops.flat import Flat, unusual

# torch's own operations abort the process, or mix up bytes in silence, when shapes or dtypes differ.

DIGEST = 16

#: digests of what was exchanged before, as it will be again
_digests: dict[object, bytes] = {}
MOST_DIGESTS = 256


class ShapeMismatch(CollectiveMismatch):
    """Ranks called one operation with data that does not fit together; the message has the shapes of each rank."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf that one rank is about to send; `dtype` of a leaf that is no tensor is the name of its type."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @property
    def kind(self) -> str:
        """The kind of an unusual tensor such as "(sparse)", nothing for a plain tensor, or the type of an object."""
        return self.dtype.partition(" ")[2] if self.dtype.startswith("torch.") else self.dtype

    def __str__(self) -> str:
        device = "" if self.device == "cpu" else f" on {self.device}"
        shape = str(list(self.shape)) if self.dtype.startswith("torch.") else ""
        return f"data{self.path} {self.dtype.removeprefix('torch.')}{shape}{device}"


Signature = tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The payload of each rank and, if ranks are about to exchange unlike data, the signature and line of each."""

    sent: list[bytes]
    signatures: list[Signature] | None
    sites: list[str]


def agree(operation: str, flat: Flat, transport: Transport, enclosed: bytes = b"") -> Agreed:
    """Whether all ranks are about to exchange like data, and the bytes that each has `enclosed`.

    Raises: CollectiveMismatch if ranks call different operations.
    Collective: every rank of the group must call.
    """
    answers = transport.exchange(operation, digest(flat) + enclosed)
    sent = [answer[DIGEST:] for answer in answers]
    first = answers[0][:DIGEST]
    if all(answer.startswith(first) for answer in answers):
        return Agreed(sent, None, [])
    return Agreed(sent, *signatures(operation, flat, transport))


def agree_alike(
    operation: str, flat: Flat, transport: Transport, part: bytes = b"", join: Join = longest_of, *, advice: str
) -> Sequence[bytes]:
    """The parts of the ranks, or what `join` made of them, if all ranks have tensors of equal shapes and dtypes.

    Raises: ShapeMismatch otherwise, with the table of ranks and shapes, and `advice`; CollectiveMismatch if ranks
    call different operations.
    Collective: every rank of the group must call, with parts that fit into the transport's room.
    """
    parts = transport.agree(operation, digest(flat), part, join)
    if parts is None:
        rows = table(*signatures(operation, flat, transport))
        raise ShapeMismatch(f"{operation} needs equal shapes and dtypes on all ranks, found{rows}\n{advice}")
    return parts


def signatures(operation: str, flat: Flat, transport: Transport) -> tuple[list[Signature], list[str]]:
    """The signature of every rank, and the line of the script that it is at.

    Collective: every rank of the group must call.
    """
    answers = transport.all_gather_objects((signature(flat), call_site()), f"{operation}: shapes")
    return [leaves for leaves, _ in answers], [site for _, site in answers]


def signature(flat: Flat) -> Signature:
    """The path, shape and dtype of every leaf."""
    return tuple(
        Leaf(path, _shape(leaf), f"{leaf.dtype}{_apart(leaf)}", leaf.device.type)
        if isinstance(leaf, torch.Tensor)
        else Leaf(path, (), flat.kind(leaf))
        for path, leaf in flat.named()
    )


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


def _apart(tensor: torch.Tensor) -> str:
    kind = unusual(tensor)
    return f" ({kind})" if kind not in (None, "meta") else ""


def digest(flat: Flat) -> bytes:
    """DIGEST bytes that are equal for equal structure, shapes and dtypes, and unlike for almost all others."""
    kinds = tuple(
        [
            (path, leaf.shape if kind is None else _shape(leaf), leaf.dtype, leaf.device.type, kind)
            if isinstance(leaf, torch.Tensor)
            else (path, flat.kind(leaf))
            for path, leaf, kind in zip(flat.paths, flat.leaves, flat.kinds, strict=True)
        ]
    )
    known = _digests.get(kinds)
    if known is None:
        if len(_digests) >= MOST_DIGESTS:
            _digests.clear()
        known = _digests[kinds] = hashlib.blake2b(repr(kinds).encode(), digest_size=DIGEST).digest()
    return known


def table(signatures: Sequence[Signature], sites: Sequence[str]) -> str:
    """A line for each rank: the leaves in which ranks differ, or all leaves if only their order differs."""
    common = set.intersection(*map(set, signatures))
    if all(common.issuperset(leaves) for leaves in signatures):
        common = set()
    rows = []
    for rank, (leaves, site) in enumerate(zip(signatures, sites, strict=True)):
        different = [str(leaf) for leaf in leaves if leaf not in common]
        rows.append(f"\n  rank {rank} at {site}: {', '.join(different) or 'nothing else'}")
    if len(set(sites)) > 1:
        rows.append("\nthe lines differ: look for a call inside an `if`, or after a `break`")
    return "".join(rows)
