"""Compute attention to keys and values that travel around a ring of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable

from accel_sequence.block import Pairs, Pattern, Run, add_gradients, join, pairs, split_dim, widened
from accel_sequence.peers import SequencePeers, Wait


@dataclass(frozen=True, eq=False, slots=True)
class RingPlan:
    """The settings of an attention over a ring.

    Args:
        peers: The ranks of the ring; None for this rank alone.
        runs: The positions that each place holds, by place.
        pattern: Which keys a query sees.
        scale: Factor of the scores.
    """

    peers: SequencePeers | None
    runs: Sequence[Sequence[Run]]
    pattern: Pattern
    scale: float

    @property
    def place(self) -> int:
        """The place of this rank."""
        return 0 if self.peers is None else self.peers.rank

    @property
    def size(self) -> int:
        """The number of places."""
        return 1 if self.peers is None else self.peers.size

    def pairs(self, shifts: int, device: torch.device) -> Pairs:
        """Return the pieces that see each other of this rank's queries and the keys it has after so many shifts.

        Args:
            shifts: How often keys were sent on.
            device: Where to make masks.
        """
        return pairs(self.runs[self.place], self.runs[(self.place - shifts) % self.size], self.pattern, device)

    def begin_shift(self, tensors: Sequence[torch.Tensor], shifts: int) -> Wait:
        """Begin to send tensors on, unless they have been everywhere.

        Args:
            tensors: The tensors.
            shifts: How often they were sent on.
        """
        if self.peers is None or shifts + 1 >= self.size:
            return lambda: list(tensors)
        return self.peers.shift(tensors)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RingPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        grouped = split_dim(widened(q), 1, k.shape[1], -1)
        lse = grouped.new_full(grouped.shape[:-1], -torch.inf)
        out = grouped.new_zeros((*lse.shape, v.shape[-1]))
        travelling = [k.contiguous(), v.contiguous()]
        for shifts in range(plan.size):
            wait = plan.begin_shift(travelling, shifts)
            key, value = (widened(one).unsqueeze(2) for one in travelling)
            join(out, lse, grouped, key, value, plan.pairs(shifts, q.device), plan.scale)
            travelling = wait()
        result = out.flatten(1, 2).to(q.dtype)
        ctx.save_for_backward(q, k, v, result, lse)
        ctx.plan = plan
        return result, lse.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: torch.Tensor, lse_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        plan: RingPlan = ctx.plan
        query, result, gradient = (split_dim(widened(one), 1, k.shape[1], -1) for one in (q, out, out_gradient))
        delta = (result * gradient).sum(-1) - lse_gradient.reshape(lse.shape)
        given = [query, lse.masked_fill(lse == -torch.inf, 0.0), gradient, delta]
        q_gradient = torch.zeros_like(query)
        travelling = [k.contiguous(), v.contiguous()]
        own: list[torch.Tensor] = []
        wait_for_sums: Wait | None = None
        for shifts in range(plan.size):
            wait = plan.begin_shift(travelling, shifts)
            key, value = (widened(one).unsqueeze(2) for one in travelling)
            found = [key.new_zeros(key.shape), value.new_zeros(value.shape)]
            add_gradients([q_gradient, *found], given, key, value, plan.pairs(shifts, q.device), plan.scale)
            if plan.peers is None or shifts == 0:
                own = found
            else:
                # the sums follow their keys: they set out from the rank after the owner, and come home at the end
                before = wait_for_sums() if wait_for_sums is not None else ()
                sums = [a.add_(b) for a, b in zip(before, found, strict=True)] if before else found
                wait_for_sums = plan.peers.shift(sums, tag=len(sums))
            travelling = wait()
        if wait_for_sums is not None:
            own = [a.add_(b) for a, b in zip(own, wait_for_sums(), strict=True)]
        k_gradient, v_gradient = (one.squeeze(2).to(k.dtype) for one in own)
        return q_gradient.flatten(1, 2).to(q.dtype), k_gradient, v_gradient, None


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RingPlan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention of the queries of this rank to the keys of all, and the log of the sum of exponentials.

    Args:
        q: The queries of this rank.
        k: Its keys, of as many heads or of fewer.
        v: Its values.
        plan: The settings.

    Shape:
        q (B, H, Q, D), k (B, K, Q, D), v (B, K, Q, E); returned (B, H, Q, E) and (B, H, Q)

    Collective:
        Every rank of the ring must call, and call backward.
    """
    with torch.autocast(q.device.type, enabled=False):
        both = _RingAttention.apply(q, k, v, plan)  # type: ignore[no-untyped-call] # of torch
    return cast("tuple[torch.Tensor, torch.Tensor]", both)


def with_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Return attention whose queries also look at a sink, which has a score and no value.

    Args:
        out: The attention without it.
        lse: Its log of the sum of exponentials.
        sinks: The score of each head.

    Shape:
        out (B, H, Q, D), lse (B, H, Q), sinks (H,)
    """
    share = torch.sigmoid(lse - sinks.to(lse.dtype)[None, :, None])
    return (out * share[..., None]).to(out.dtype)
