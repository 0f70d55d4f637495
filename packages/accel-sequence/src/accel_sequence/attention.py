"""Compute attention over sequences that are divided over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from accel_sequence.block import Pattern, split_dim
from accel_sequence.division import CannotDivide, Division, current
from accel_sequence.heads import key_heads_for, to_heads, to_parts
from accel_sequence.ring import RingPlan, ring_attention, with_sinks


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    real: torch.Tensor | None = None,
    documents: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention of queries to the keys of whole sequences, of which this rank has a part.

    Outside of a forward that is divided, it is that of the sequences as they are. Names of a forward's arguments imply
    nothing here: padding and packed documents are what is given.

    Args:
        query: Queries.
        key: Keys, of as many heads or of a divisor.
        value: Values, of as many heads as keys.
        is_causal: Queries see no keys after them.
        scale: Factor of the scores; 1 / √D without it.
        window: Queries see keys at less than this distance.
        sinks: The score of a sink for each head, which takes its share of attention and has no value.
        dropout_p: Share of the weights that is dropped.
        real: Keys that count, and are no padding.
        documents: The number of the document of each token; queries see keys of their own.

    Raises:
        CannotDivide: Heads do not divide, or weights are dropped where keys travel.

    Shape:
        query (B, H, T, D), key (B, K, T, D), value (B, K, T, D), sinks (H,); returned (B, H, T, D);
        real and documents (B or 1, T), of the part or of whole sequences

    Collective:
        In a forward that is divided, every rank that shares the sequences must call, and call backward.
    """
    if key.shape[2] != query.shape[2]:
        raise CannotDivide(
            f"attention of {query.shape[2]} queries to {key.shape[2]} keys: only self-attention is divided along the"
            " sequence; leave out sp_size and cp_size for a model with other attention"
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    division = current()
    if division is None:
        return _whole(query, key, value, Pattern(is_causal, window, real, documents), scale, sinks, dropout_p)
    real, documents = _joined(real, division.real, division), _joined(documents, division.documents, division, -1)
    if real is None and not is_causal:
        # of causal queries none that counts is after the padding at the end
        real = division.end(query.device)
    pattern = Pattern(is_causal, window, real, documents)
    ranks = division.ranks
    if ranks.ring is not None and dropout_p > 0:
        raise CannotDivide(
            f"attention drops {dropout_p:g} of its weights, and cp_size={ranks.ring.size} has no weights in one place;"
            " set the dropout of attention to 0 in the model's config, or use sp_size"
        )
    heads = ranks.heads
    if heads is not None:
        if query.shape[1] % heads.size:
            raise CannotDivide(
                f"sp_size={heads.size} divides heads, and attention has {query.shape[1]} of them; use a size that"
                " divides them, or cp_size, which divides none"
            )
        wanted = key_heads_for(key.shape[1], query.shape[1], heads.size)
        key, value = (one.repeat_interleave(wanted // one.shape[1], 1) for one in (key, value))
        query, key, value = (to_heads(one, heads) for one in (query, key, value))
        if sinks is not None:
            sinks = split_dim(sinks, 0, heads.size, -1)[heads.rank]
    if ranks.ring is None:
        out = _whole(query, key, value, pattern, scale, sinks, dropout_p)
    else:
        places = [ranks.layout.runs(place, division.padded) for place in range(ranks.ring.size)]
        out, lse = ring_attention(query, key, value, RingPlan(ranks.ring, places, pattern, scale))
        out = out if sinks is None else with_sinks(out, lse, sinks)
    return out if heads is None else to_parts(out, heads)


def _joined(x: torch.Tensor | None, known: torch.Tensor | None, division: Division, fill: int = 0) -> Any:
    """Return what a model gives for its keys, of a part or of whole sequences, or what is known of the batch."""
    if x is None:
        return known
    return division.pad(division.whole(x.long()) if x.shape[1] == division.part else x.long(), 1, fill)


def _whole(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: Pattern,
    scale: float,
    sinks: torch.Tensor | None,
    dropout_p: float,
) -> torch.Tensor:
    """Return the attention of whole sequences, by torch's kernels if nothing but causality hides keys."""
    length = query.shape[2]
    if sinks is None and (dropout_p > 0 or pattern.is_plain):
        everything = slice(0, length)
        mask = None if pattern.is_plain else pattern.mask(everything, everything, query.device)
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=pattern.causal and mask is None,
            scale=scale,
            dropout_p=dropout_p,
            enable_gqa=key.shape[1] != query.shape[1],
        )
    if dropout_p > 0:
        raise CannotDivide(
            f"attention with sinks drops {dropout_p:g} of its weights, which is not computed here; set the dropout of"
            " attention to 0 in the model's config"
        )
    out, lse = ring_attention(query, key, value, RingPlan(None, [[(0, length)]], pattern, scale))
    return out if sinks is None else with_sinks(out, lse, sinks)
