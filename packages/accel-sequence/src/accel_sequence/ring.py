"""Compute attention to keys and values that travel around a ring of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable

from accel_sequence.block import Joined, JoinedGradients, Pattern, Run
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

    def runs_after(self, shifts: int) -> Sequence[Run]:
        """Return the positions of the keys that this rank has after so many shifts."""
        return self.runs[(self.place - shifts) % self.size]

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
        joined = Joined(q, plan.runs[plan.place], plan.pattern, plan.scale)
        travelling = [k.contiguous(), v.contiguous()]
        for shifts in range(plan.size):
            wait = plan.begin_shift(travelling, shifts)
            joined.add(travelling[0], travelling[1], plan.runs_after(shifts))
            travelling = wait()
        out = cast("torch.Tensor", joined.out)
        ctx.save_for_backward(q, k, v, out, joined.lse)
        ctx.plan = plan
        return out.to(q.dtype), joined.lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: torch.Tensor, lse_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        plan: RingPlan = ctx.plan
        delta = (out * out_gradient).sum(-1) - lse_gradient
        gradients = JoinedGradients(q, lse, out_gradient, delta, plan.runs[plan.place], plan.pattern, plan.scale)
        travelling = [k.contiguous(), v.contiguous()]
        own: list[torch.Tensor] = []
        wait_for_sums: Wait | None = None
        for shifts in range(plan.size):
            wait = plan.begin_shift(travelling, shifts)
            found = list(gradients.add(travelling[0], travelling[1], plan.runs_after(shifts)))
            if shifts == 0:
                own = found
            else:
                # the sums follow their keys: they set out from the rank after the owner, and come home at the end
                before = wait_for_sums() if wait_for_sums is not None else ()
                sums = [a.add_(b) for a, b in zip(before, found, strict=True)] if before else found
                wait_for_sums = cast("SequencePeers", plan.peers).shift(sums, tag=len(sums))
            travelling = wait()
        if wait_for_sums is not None:
            own = [a.add_(b) for a, b in zip(own, wait_for_sums(), strict=True)]
        return gradients.q_gradient.to(q.dtype), own[0].to(k.dtype), own[1].to(v.dtype), None


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
