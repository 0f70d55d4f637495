"""Ranks tell each other what they are about to exchange, before they do: a mismatch becomes an error, not a hang."""

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
    """Ranks entered one collective call with data that does not fit together; the message has each rank's."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What one rank is about to send at one place of its data; what is no tensor has the name of its type."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @property
    def kind(self) -> str:
        """What sets it apart from a tensor that is its numbers, and whether it is one."""
        return self.dtype.partition(" ")[2] if self.dtype.startswith("torch.") else self.dtype

    def __str__(self) -> str:
        place = "" if self.device == "cpu" else f" on {self.device}"
        shape = str(list(self.shape)) if self.dtype.startswith("torch.") else ""
        return f"data{self.path} {self.dtype.removeprefix('torch.')}{shape}{place}"


Signature = tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What ranks are about to exchange: what each sent with it, and, where they are not alike, their signatures."""

    sent: list[bytes]
    everyone: list[Signature] | None
    sites: list[str]


def agree(operation: str, flat: Flat, transport: Transport, enclosed: bytes = b"") -> Agreed:
    """What all ranks are about to exchange, and what each has `enclosed`; one message where that is little.

    Raises: CollectiveMismatch when ranks call different operations.
    Collective: every rank of the group must call.
    """
    answers = transport.exchange(operation, digest(flat) + enclosed)
    sent = [one[DIGEST:] for one in answers]
    first = answers[0][:DIGEST]
    if all(one.startswith(first) for one in answers):
        return Agreed(sent, None, [])
    return Agreed(sent, *signatures(operation, flat, transport))


def agree_alike(
    operation: str, flat: Flat, transport: Transport, part: bytes = b"", join: Join = longest_of, *, advice: str
) -> Sequence[bytes]:
    """The ranks' parts, or what `join` made of them, once all are known to have tensors of equal shape and dtype.

    Raises: ShapeMismatch otherwise, with the table of ranks and shapes, and `advice`; CollectiveMismatch when ranks
    call different operations.
    Collective: every rank of the group must call, with parts that fit into the transport's room.
    """
    parts = transport.agree(operation, digest(flat), part, join)
    if parts is None:
        found = table(*signatures(operation, flat, transport))
        raise ShapeMismatch(f"{operation} needs equal shapes and dtypes on all ranks, found{found}\n{advice}")
    return parts


def signatures(operation: str, flat: Flat, transport: Transport) -> tuple[list[Signature], list[str]]:
    """Every rank's signature, and the line that asks.

    Collective: every rank of the group must call.
    """
    told = transport.all_gather_objects((signature(flat), call_site()), f"{operation}: shapes")
    return [leaves for leaves, _ in told], [site for _, site in told]


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
    """A number of DIGEST bytes that tells structure, shapes and dtypes from most others."""
    kinds = tuple(
        [
            (path, leaf.shape if kind is None else _shape(leaf), leaf.dtype, leaf.device.type, kind)
            if isinstance(leaf, torch.Tensor)
            else (path, flat.kind(leaf))
            for path, leaf, kind in zip(flat.paths, flat.leaves, flat.kinds, strict=True)
        ]
    )
    found = _digests.get(kinds)
    if found is None:
        if len(_digests) >= MOST_DIGESTS:
            _digests.clear()
        found = _digests[kinds] = hashlib.blake2b(repr(kinds).encode(), digest_size=DIGEST).digest()
    return found


def table(everyone: Sequence[Signature], sites: Sequence[str]) -> str:
    """One line a rank: the leaves in which ranks differ, or all of them when only their order differs."""
    common = set.intersection(*(set(one) for one in everyone))
    if all(common.issuperset(one) for one in everyone):
        common = set()
    rows = []
    for rank, (one, site) in enumerate(zip(everyone, sites, strict=True)):
        different = [str(leaf) for leaf in one if leaf not in common]
        rows.append(f"\n  rank {rank} at {site}: {', '.join(different) or 'nothing else'}")
    if len(set(sites)) > 1:
        rows.append("\nthe lines differ: look for a call inside an `if`, or after a `break`")
    return "".join(rows)
