"""Divide the arguments of a forward along the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from accel_sequence.division import CannotDivide, Division, Ranks

#: what stays whole, as the loss divides it
LABELS = ("labels", "shift_labels")
#: what tells where packed documents begin, in batches of one row
STARTS = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")
#: what says the same for kernels that are not called here
ABOUT_STARTS = ("max_length_q", "max_length_k", "max_seqlen", "max_seqlen_q", "max_seqlen_k", "seq_idx")
#: what tells of padding and documents
MARKS = ("attention_mask", "position_ids", "cache_position", *STARTS, *ABOUT_STARTS)
#: what a model keeps of earlier tokens
CACHES = ("cache", "past_key_values")
#: what is not there for a part of a sequence, if it is asked for
REFUSED = {
    "output_attentions": "weights of attention are in no one place; leave it out",
    "output_router_logits": "the loss of routers is one of whole sequences; leave it out",
    "logits_to_keep": "a rank has a part of the logits; leave it out, and pick from the whole ones without gradients",
    **dict.fromkeys(CACHES, "earlier tokens are not divided; leave it out, or go on from it without gradients"),
    "encoder_hidden_states": "only self-attention is divided; leave out sp_size and cp_size",
}


def continues(arguments: Mapping[str, Any]) -> bool:
    """Return whether a forward goes on from earlier tokens or keeps these for later, as generation does."""
    asked = arguments.get("use_cache") is True or any(arguments.get(name) is not None for name in CACHES)
    return asked and not torch.is_grad_enabled()


def divide(
    arguments: Mapping[str, Any], ranks: Ranks, *, takes_positions: bool, reached: bool
) -> tuple[Division, dict[str, Any]]:
    """Return the division of a batch, and the arguments for the part of this rank.

    Args:
        arguments: The arguments for whole sequences, by name.
        ranks: The ranks that share them.
        takes_positions: Whether the forward has `position_ids`.
        reached: Whether names of arguments tell what is padding, and where documents begin.

    Raises:
        CannotDivide: An argument has no parts.
    """
    tensors = [x for name, x in arguments.items() if name not in (*LABELS, *MARKS) and isinstance(x, torch.Tensor)]
    tokens = next((x for x in tensors if x.ndim >= 2), None)
    if tokens is None:
        raise CannotDivide(
            f"no argument of the forward ({', '.join(arguments) or 'there are none'}) is a tensor of rows and tokens;"
            " give tokens of shape (batch, length) first, or leave out sp_size and cp_size"
        )
    division, rows = Division(ranks, tokens.shape[1]), len(tokens)
    given, parts = dict(arguments), dict[str, Any]()
    if reached:
        marks = {name: given.pop(name) for name in MARKS if name in given and name != "position_ids"}
        parts = dict.fromkeys(marks)
        _mark(division, rows, marks, given.get("position_ids"))
    for name, x in given.items():
        if name in REFUSED and x is not None and not (isinstance(x, int) and x == 0):
            raise CannotDivide(f"{name}: {REFUSED[name]}")
        whole = name in LABELS or not isinstance(x, torch.Tensor) or x.ndim == 0
        parts[name] = x if whole else _part(name, x, division, rows)
    if takes_positions and parts.get("position_ids") is None:
        parts["position_ids"] = division.positions(tokens.device)
    return division, parts


def _part(name: str, x: torch.Tensor, division: Division, rows: int) -> torch.Tensor:
    """Return the part of an argument."""
    shape, length = tuple(x.shape), division.length
    if shape[1:2] == (length,) and shape[0] in (1, rows) and length not in shape[2:]:
        return division.local(x)
    if x.ndim > 1 or length in shape:
        raise CannotDivide(
            f"{name} of shape {shape}: expected ({rows}, {length}, ...), or one dim of another length; a mask of"
            " queries and keys cannot be divided: give what it is made of, such as padding and the numbers of"
            " documents, which accel_sequence.attention takes"
        )
    return x


def _mark(division: Division, rows: int, marks: Mapping[str, Any], positions: torch.Tensor | None) -> None:
    """Let a division know of padding and documents, as Transformers tells of them."""
    mask, length = marks.get("attention_mask"), division.length
    if mask is not None:
        shape = getattr(mask, "shape", None)
        if shape != (rows, length):
            raise CannotDivide(
                f"attention_mask of {type(mask).__name__} {shape}: expected ({rows}, {length}), with 0 for padding; a"
                " mask of queries and keys cannot be divided: packed documents are told by position_ids that begin at"
                " 0, windows by the model's config"
            )
        division.real = None if bool(mask.all()) else division.pad(mask.bool(), 1, False)
    starts = next((marks[name] for name in STARTS if marks.get(name) is not None), None)
    if starts is not None:
        division.documents = _of_starts(starts, division, rows)
    elif mask is None and positions is not None and positions.shape[1:] == (length,):
        division.documents = _of_positions(positions, division)


def _of_positions(positions: torch.Tensor, division: Division) -> torch.Tensor | None:
    """Return the number of the document of each position, or None if rows are one each."""
    begins = positions.diff(dim=1) != 1
    if not bool(begins.any()):
        return None
    documents = torch.nn.functional.pad(begins.cumsum(1), (1, 0))
    return division.pad(documents, 1, -1)


def _of_starts(starts: torch.Tensor, division: Division, rows: int) -> torch.Tensor:
    """Return the number of the document of each position, by the places where documents begin."""
    if rows != 1 or starts.ndim != 1 or int(starts[-1]) != division.length or int(starts[0]) != 0:
        raise CannotDivide(
            f"starts of documents of shape {tuple(starts.shape)} for {rows} rows: expected (documents + 1,), from 0 to"
            f" {division.length}, for a single row"
        )
    places = torch.arange(division.length, device=starts.device)
    documents = torch.bucketize(places, starts[1:-1].to(places.dtype), right=True)[None]
    return division.pad(documents, 1, -1)
