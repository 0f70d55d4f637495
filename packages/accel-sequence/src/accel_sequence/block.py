"""Compute attention piece by piece, joined by the log of the sum of exponentials.

B batch, K key heads, G query heads to a key head, Q queries, T keys, D width of a head
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

#: queries and keys of a piece at most
PIECE = 1024


@dataclass(frozen=True, eq=False, slots=True)
class Pattern:
    """The keys that each query sees.

    Args:
        causal: None after it.
        window: None at a distance of that many positions or more.
        real: Keys that count, by row of the batch and position; all without it.
        documents: The number of the document of each position; a query sees keys of its own.

    Shape:
        real and documents (B or 1, T), of whole sequences
    """

    causal: bool = True
    window: int | None = None
    real: torch.Tensor | None = None
    documents: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """True if it is causal or full, and no more."""
        return self.window is None and self.real is None and self.documents is None

    def sees_nothing(self, queries: slice, keys: slice) -> bool:
        """Return whether no query of a piece sees a key of another, by their positions."""
        after = self.causal and keys.start >= queries.stop
        before = self.window is not None and queries.start - (keys.stop - 1) >= self.window
        ahead = self.window is not None and not self.causal and keys.start - (queries.stop - 1) >= self.window
        return after or before or ahead

    def mask(self, queries: slice, keys: slice, device: torch.device) -> torch.Tensor | None:
        """Return True where a query sees a key, or None if each sees all.

        Args:
            queries: Positions of the queries.
            keys: Positions of the keys.
            device: Where to make it.

        Shape:
            (B or 1, 1, Q, T)
        """
        seen: torch.Tensor | None = None
        distance: torch.Tensor | None = None
        if (self.causal and keys.stop - 1 > queries.start) or self.window is not None:
            places = torch.arange(queries.start, queries.stop, device=device)[:, None]
            distance = places - torch.arange(keys.start, keys.stop, device=device)[None, :]
        if distance is not None and self.causal:
            seen = distance >= 0
        if distance is not None and self.window is not None:
            near = distance.abs() < self.window
            seen = near if seen is None else seen & near
        if seen is not None:
            seen = seen[None, None]
        if self.documents is not None:
            same = self.documents[:, None, queries, None] == self.documents[:, None, None, keys]
            seen = same if seen is None else seen & same
        if self.real is not None:
            real = self.real[:, None, None, keys]
            seen = real if seen is None else seen & real
        return seen


Run = tuple[int, int]


def pieces(runs: Sequence[Run]) -> Iterator[tuple[slice, slice]]:
    """Yield pieces of runs: where each is in a tensor, and its positions.

    Args:
        runs: First positions and ends of the runs that lie in the tensor one after another.
    """
    offset = 0
    for begin, end in runs:
        for start in range(begin, end, PIECE):
            stop = min(start + PIECE, end)
            yield slice(offset + start - begin, offset + stop - begin), slice(start, stop)
        offset += end - begin


def widened(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype to add up in."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(widened(x), memory_format=torch.contiguous_format)


def split_dim(x: torch.Tensor, dim: int, first: int, second: int) -> torch.Tensor:
    """Return a view in which a dimension is two.

    Args:
        x: A tensor.
        dim: The dimension.
        first: Size of the first; -1 for what is left.
        second: Size of the second; -1 for what is left.
    """
    parts: torch.Tensor = x.unflatten(dim, (first, second))  # type: ignore[no-untyped-call] # of torch
    return parts


def _grouped(x: torch.Tensor, key_heads: int) -> torch.Tensor:
    """Return queries by key head: (B, K, G * Q, D)."""
    return split_dim(x, 1, key_heads, -1).flatten(2, 3)


def _scores(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor | None, scale: float) -> torch.Tensor:
    """Return the scores of a piece, of which those that are not seen are minus infinity: (B, K, G, Q, T)."""
    grouped = _grouped(q, k.shape[1])
    scores = split_dim(grouped @ k.transpose(-1, -2), 2, -1, q.shape[2]) * scale
    return scores if seen is None else scores.masked_fill(~seen[:, :, None], -torch.inf)


class Joined:
    """The attention of queries to the keys so far.

    Args:
        q: The queries.
        runs: Their positions.
        pattern: Which keys they see.
        scale: Factor of the scores.

    Shape:
        q (B, K * G, Q, D)
    """

    def __init__(self, q: torch.Tensor, runs: Sequence[Run], pattern: Pattern, scale: float) -> None:
        self._q, self._runs, self._pattern, self._scale = q, runs, pattern, scale
        wide = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
        self.lse = q.new_full(q.shape[:-1], -torch.inf, dtype=wide)
        self.out: torch.Tensor | None = None

    def add(self, k: torch.Tensor, v: torch.Tensor, runs: Sequence[Run]) -> None:
        """Let the queries see more keys.

        Args:
            k: The keys.
            v: Their values.
            runs: Their positions.

        Shape:
            k (B, K, T, D), v (B, K, T, E)
        """
        if self.out is None:
            self.out = self.lse.new_zeros((*self.lse.shape, v.shape[-1]))
        heads = k.shape[1]
        for here, queries in pieces(self._runs):
            q = widened(self._q[:, :, here])
            for there, keys in pieces(runs):
                if self._pattern.sees_nothing(queries, keys):
                    continue
                scores = _scores(q, widened(k[:, :, there]), self._pattern.mask(queries, keys, q.device), self._scale)
                before = self.lse[:, :, here]
                lse = torch.logaddexp(before, scores.logsumexp(-1).flatten(1, 2))
                # a query that has seen no key has minus infinity, and no share of anything
                safe = lse.masked_fill(lse == -torch.inf, 0.0)
                share = (scores - split_dim(safe, 1, heads, -1)[..., None]).exp_()
                more = split_dim(share.flatten(2, 3) @ widened(v[:, :, there]), 2, -1, q.shape[2]).flatten(1, 2)
                self.out[:, :, here] = self.out[:, :, here] * (before - safe).exp()[..., None] + more
                self.lse[:, :, here] = lse


class JoinedGradients:
    """The gradients of attention whose result is known.

    Args:
        q: The queries.
        lse: Their log of the sum of exponentials.
        out_gradient: Gradient of the result.
        delta: For each query the sum of result times gradient, less the gradient of its log.
        runs: Positions of the queries.
        pattern: Which keys they see.
        scale: Factor of the scores.
    """

    def __init__(
        self,
        q: torch.Tensor,
        lse: torch.Tensor,
        out_gradient: torch.Tensor,
        delta: torch.Tensor,
        runs: Sequence[Run],
        pattern: Pattern,
        scale: float,
    ) -> None:
        self._q, self._gradient, self._delta = q, out_gradient, delta
        self._lse = lse.masked_fill(lse == -torch.inf, 0.0)
        self._runs, self._pattern, self._scale = runs, pattern, scale
        self.q_gradient = _zeros(q)

    def add(self, k: torch.Tensor, v: torch.Tensor, runs: Sequence[Run]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of keys and values, and add to that of the queries.

        Args:
            k: The keys.
            v: Their values.
            runs: Their positions.
        """
        heads, k_gradient, v_gradient = k.shape[1], _zeros(k), _zeros(v)
        for here, queries in pieces(self._runs):
            q, gradient = widened(self._q[:, :, here]), _grouped(widened(self._gradient[:, :, here]), heads)
            lse, delta = (split_dim(one[:, :, here], 1, heads, -1)[..., None] for one in (self._lse, self._delta))
            for there, keys in pieces(runs):
                if self._pattern.sees_nothing(queries, keys):
                    continue
                key, value = widened(k[:, :, there]), widened(v[:, :, there])
                share = (_scores(q, key, self._pattern.mask(queries, keys, q.device), self._scale) - lse).exp_()
                v_gradient[:, :, there] += share.flatten(2, 3).transpose(-1, -2) @ gradient
                of_share = split_dim(gradient @ value.transpose(-1, -2), 2, -1, q.shape[2])
                of_scores = (share * (of_share - delta) * self._scale).flatten(2, 3)
                k_gradient[:, :, there] += of_scores.transpose(-1, -2) @ _grouped(q, heads)
                more = split_dim(of_scores @ key, 2, -1, q.shape[2]).flatten(1, 2)
                self.q_gradient[:, :, here] += more
        return k_gradient, v_gradient
