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


def divide(arguments: Mapping[str, Any], ranks: Ranks, *, takes_positions: bool) -> tuple[Division, dict[str, Any]]:
    """Return the division of a batch, and the arguments for the part of this rank.

    Args:
        arguments: The arguments for whole sequences, by name.
        ranks: The ranks that share them.
        takes_positions: Whether the forward has `position_ids`.

    Raises:
        CannotDivide: An argument has no parts. The message lists all.
    """
    tokens = next((x for name, x in arguments.items() if _has_tokens(name, x)), None)
    if tokens is None:
        raise CannotDivide(
            f"no argument of the forward ({', '.join(arguments) or 'there are none'}) is a tensor of rows and tokens;"
            " give tokens of shape (batch, length) first, or leave out sp_size and cp_size"
        )
    rows, length = tokens.shape[:2]
    problems: list[str] = []
    division = Division(ranks, length)
    given = {name: x for name, x in arguments.items() if x is not None}
    mask = given.pop("attention_mask", None)
    starts = [given.pop(name) for name in STARTS if name in given]
    for name in (*ABOUT_STARTS, "cache_position"):
        given.pop(name, None)
    positions = given.get("position_ids")
    if mask is not None:
        _take_mask(mask, division, rows, problems)
    if starts:
        division.documents = _of_starts(starts[0], division, rows, problems)
    elif mask is None and positions is not None and positions.ndim == 2 and positions.shape[1] == length:
        division.documents = _of_positions(positions, division)
    parts: dict[str, Any] = {"attention_mask": None} if "attention_mask" in arguments else {}
    for name, x in given.items():
        if name in REFUSED and x is not False and not (isinstance(x, int) and x == 0):
            problems.append(f"{name}: {REFUSED[name]}")
        elif name in LABELS or not isinstance(x, torch.Tensor) or x.ndim == 0:
            parts[name] = x
        else:
            parts[name] = _part(name, x, division, rows, problems)
    if problems:
        raise CannotDivide(
            f"a batch of {rows} x {length} tokens cannot be divided over {ranks.layout.size} ranks:\n  "
            + "\n  ".join(problems)
        )
    if takes_positions and "position_ids" not in parts:
        parts["position_ids"] = division.positions(tokens.device)
    return division, parts


def _has_tokens(name: str, x: object) -> bool:
    side = (*LABELS, "attention_mask", "position_ids", *STARTS)
    return name not in side and isinstance(x, torch.Tensor) and x.ndim >= 2


def _part(name: str, x: torch.Tensor, division: Division, rows: int, problems: list[str]) -> torch.Tensor:
    """Return the part of an argument, or note why there is none."""
    shape, length = tuple(x.shape), division.length
    by_token = x.ndim >= 2 and shape[1] == length and shape[0] in (1, rows)
    if by_token and length not in shape[2:] and "mask" not in name:
        value = x.select(1, length - 1) if name == "position_ids" else None
        part = division.local(x)
        if value is None or division.padded == length:
            return part
        # tables of positions have no rows for padding
        places = division.ranks.layout.positions(division.ranks.all.rank, division.padded).to(x.device)
        return torch.where((places < length)[None], part, value[:, None])
    if x.ndim == 1 and length not in shape:
        return x
    problems.append(
        f"{name} of shape {shape}: expected ({rows}, {length}, ...), or one dim of another length; of masks only"
        f" attention_mask is known, of shape ({rows}, {length}), with 0 for padding: packed documents are told by"
        " position_ids that begin at 0"
    )
    return x


def _take_mask(mask: Any, division: Division, rows: int, problems: list[str]) -> None:
    shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else None
    if shape != (rows, division.length):
        problems.append(
            f"attention_mask of {'class ' + type(mask).__name__ if shape is None else f'shape {shape}'}: expected"
            f" ({rows}, {division.length}), with 0 for padding; a mask of queries and keys cannot be divided: packed"
            " documents are told by position_ids that begin at 0, windows by the model's config"
        )
    elif not bool(mask.all()):
        division.real = division.pad(mask.bool(), 1, False)


def _of_positions(positions: torch.Tensor, division: Division) -> torch.Tensor | None:
    """Return the number of the document of each position, or None if rows are one each."""
    begins = positions.diff(dim=1) != 1
    if not bool(begins.any()):
        return None
    documents = torch.nn.functional.pad(begins.cumsum(1), (1, 0))
    return division.pad(documents, 1, -1)


def _of_starts(starts: torch.Tensor, division: Division, rows: int, problems: list[str]) -> torch.Tensor | None:
    """Return the number of the document of each position, by the places where documents begin."""
    if rows != 1 or starts.ndim != 1 or int(starts[-1]) != division.length or int(starts[0]) != 0:
        problems.append(
            f"starts of documents of shape {tuple(starts.shape)} for {rows} rows: expected (documents + 1,), from 0 to"
            f" {division.length}, for a single row"
        )
        return None
    places = torch.arange(division.length, device=starts.device)
    documents = torch.bucketize(places, starts[1:-1].to(places.dtype), right=True)[None]
    return division.pad(documents, 1, -1)
