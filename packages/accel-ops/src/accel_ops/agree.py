"""Compare what ranks are about to exchange, so that a mismatch becomes an error and not a hang."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from accel_comm import CollectiveMismatch, Transport, call_site
from accel_comm.transports import Join, longest_of

from accel_ops.flat import Flat

# torch's own operations abort the process, or mix up bytes in silence, when shapes or dtypes differ.

DIGEST = 16

#: digests of what was exchanged before, as it will be again
_digests: dict[object, bytes] = {}
MOST_DIGESTS = 256


class ShapeMismatch(CollectiveMismatch):
    """An error of ranks that call one operation with data that does not fit together.

    The message has the shapes on each rank.
    """


class Leaf(NamedTuple):
    """The description of one leaf that a rank is about to send.

    Args:
        path: Where the leaf is in its data, such as "['x'][0]".
        shape: Sizes of a tensor, and () for another object.
        dtype: The dtype of a tensor, such as "torch.float32", with its kind in brackets if the tensor is unusual; the
            name of the type of another object.
        device: The type of the device, such as "cuda".
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @property
    def kind(self) -> str:
        """The kind of an unusual tensor such as "(sparse)", "" for a plain tensor, or the type of another object."""
        return self.dtype.partition(" ")[2] if self.dtype.startswith("torch.") else self.dtype

    def __str__(self) -> str:
        device = "" if self.device == "cpu" else f" on {self.device}"
        shape = str(list(self.shape)) if self.dtype.startswith("torch.") else ""
        return f"data{self.path} {self.dtype.removeprefix('torch.')}{shape}{device}"


Signature = tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The payloads of all ranks, and what their data looks like if it differs.

    Args:
        sent: The payload of each rank.
        signatures: The signature of each rank, or None if all are equal.
        sites: The line of the script that each rank is at, empty if all signatures are equal.
    """

    sent: list[bytes]
    signatures: list[Signature] | None
    sites: list[str]


def agree(operation: str, flat: Flat, transport: Transport, enclosed: bytes = b"") -> Agreed:
    """Exchange payloads, and find out if all ranks are about to exchange like data.

    Args:
        operation: Name of the operation, for error messages.
        flat: The data that this rank is about to exchange.
        transport: Transport of the ranks that take part.
        enclosed: Payload of this rank.

    Returns:
        The payloads in rank order, with the signatures if they differ.

    Raises:
        CollectiveMismatch: Ranks call different operations.

    Collective:
        Every rank of the group must call.
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
    """Exchange payloads, and raise if shapes, dtypes or structures differ between ranks.

    Args:
        operation: Name of the operation, for error messages.
        flat: The data that this rank is about to exchange.
        transport: Transport of the ranks that take part.
        part: Payload of this rank, which has to fit into `transport.inline_bytes`.
        join: Function that makes one payload of those of all ranks.
        advice: Last sentence of the error, which says what to do.

    Returns:
        What the transport has made of the payloads, by `join` if it joins them.

    Raises:
        ShapeMismatch: The data differs; the message has a table of ranks and shapes.
        CollectiveMismatch: Ranks call different operations.

    Collective:
        Every rank of the group must call.
    """
    parts = transport.agree(operation, digest(flat), part, join)
    if parts is None:
        rows = table(*signatures(operation, flat, transport))
        raise ShapeMismatch(f"{operation} needs equal shapes and dtypes on all ranks, found{rows}\n{advice}")
    return parts


def signatures(operation: str, flat: Flat, transport: Transport) -> tuple[list[Signature], list[str]]:
    """Exchange the signature of each rank, and the line of the script that it is at.

    Args:
        operation: Name of the operation, for error messages.
        flat: The data of this rank.
        transport: Transport of the ranks that take part.

    Returns:
        The signatures in rank order, and the lines in rank order.

    Collective:
        Every rank of the group must call.
    """
    answers = transport.all_gather_objects((signature(flat), call_site()), f"{operation}: shapes")
    return [leaves for leaves, _ in answers], [site for _, site in answers]


def signature(flat: Flat) -> Signature:
    """Return the path, shape and dtype of every leaf."""
    return tuple(
        [
            Leaf(
                path,
                () if kind == "nested" else leaf.shape,
                f"{leaf.dtype} ({kind})" if kind not in (None, "meta") else str(leaf.dtype),
                leaf.device.type,
            )
            if isinstance(leaf, torch.Tensor)
            else Leaf(path, (), flat.kind(leaf))
            for path, leaf, kind in zip(flat.paths, flat.leaves, flat.kinds, strict=True)
        ]
    )


def digest(flat: Flat) -> bytes:
    """Return a digest of structure, shapes and dtypes, of `DIGEST` bytes.

    Equal signatures have equal digests, and different ones almost never do.
    """
    leaves = signature(flat)
    known = _digests.get(leaves)
    if known is None:
        if len(_digests) >= MOST_DIGESTS:
            _digests.clear()
        known = _digests[leaves] = hashlib.blake2b(repr(leaves).encode(), digest_size=DIGEST).digest()
    return known


def table(signatures: Sequence[Signature], sites: Sequence[str]) -> str:
    """Return a line for each rank with the leaves that not all ranks have.

    If all ranks have the same leaves in different orders, each line has all leaves.

    Args:
        signatures: The signature of each rank.
        sites: The line of the script that each rank is at.
    """
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
