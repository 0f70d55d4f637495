"""One rank's tensors and objects, on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accel_state import Transport, call_site

from accel_ops.agree import DIGEST, ShapeMismatch, agree, digest, require_alike, signature
from accel_ops.flat import Flat
from accel_ops.packing import as_bytes, from_bytes, in_groups, to_bytes, travels_small

#: leaves that are named where ranks do not fit together
MOST = 4
#: whether the numbers come with the first message, or in others
LETTER, MESSAGES = b"L", b"M"


def broadcast(data: Any, transport: Transport, *, source: int = 0) -> Any:
    """Nested tensors of rank `source`.

    Of small data the source hears nothing back where the transport allows that, also not of a rank whose data does not
    fit.

    Shape: unchanged.
    Raises: ShapeMismatch on a rank that gives other shapes or dtypes than the source; TypeError for a leaf that is no
    tensor; ValueError for a rank that does not exist.
    Collective: every rank of the group must call.
    """
    _require_rank(source, transport)
    operation = f"broadcast (from rank {source})"
    if transport.size == 1:
        if not isinstance(data, torch.Tensor):
            Flat(data, operation).check()
        return data
    flat = Flat(data, operation)
    tensors = flat.tensors
    small = flat.refusal is None and travels_small(tensors)
    mine, here = digest(flat), transport.rank == source
    head = mine + (LETTER if small else MESSAGES)
    answer = transport.send(
        operation, head + _words(flat) + (to_bytes(tensors) if small else b"") if here else b"", source
    )
    end = DIGEST + 3 + int.from_bytes(answer[DIGEST + 1 : DIGEST + 3], "little")
    advice = "give every rank a tensor of the shape to receive, or use broadcast_object_list"
    if answer[DIGEST : DIGEST + 1] == MESSAGES:
        # it takes so long that all may as well agree before
        require_alike(operation, agree(operation, flat, transport), advice=advice)
        flat.check()
        return flat.rebuilt(in_groups(tensors, as_bytes, lambda whole: transport.broadcast(whole.clone(), source)))
    if not answer.startswith(mine):
        found = (
            f"\n  rank {source}{answer[DIGEST + 3 : end].decode()}\n  rank {transport.rank}{_words(flat)[2:].decode()}"
        )
        raise ShapeMismatch(f"{operation} needs equal shapes and dtypes on all ranks, found{found}\n{advice}")
    flat.check()
    if here:
        return flat.rebuilt(tensor.detach().clone() for tensor in tensors)
    return flat.rebuilt(_of_letter(tensors, answer[end:]))


def broadcast_object_list(objects: list[Any], transport: Transport, *, source: int = 0) -> list[Any]:
    """`objects`, overwritten in place by those of rank `source`.

    Raises: ValueError for a rank that does not exist.
    Collective: every rank of the group must call.
    """
    _require_rank(source, transport)
    objects[:] = transport.broadcast_object(objects, source)
    return objects


def _words(flat: Flat) -> bytes:
    """What a rank has, in words for the others, after their number of bytes."""
    some = ", ".join(str(leaf) for leaf in signature(flat, most=MOST))
    more = f" and {len(flat.leaves) - MOST} more" if len(flat.leaves) > MOST else ""
    words = f" at {call_site()}: {some}{more}".encode()
    return len(words).to_bytes(2, "little") + words


def _of_letter(tensors: Sequence[torch.Tensor], sent: bytes) -> list[torch.Tensor]:
    start, found = 0, []
    for tensor in tensors:
        end = start + tensor.nbytes
        found.append(from_bytes(sent[start:end], tensor.shape, tensor.dtype))
        start = end
    return found


def _require_rank(source: int, transport: Transport) -> None:
    if not 0 <= source < transport.size:
        raise ValueError(f"rank {source} of {transport.size}: expected 0 to {transport.size - 1}")
