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
            real = self.real[:, None, None, keys].bool()
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


Pairs = Iterator[tuple[slice, slice, torch.Tensor | None]]


def pairs(queries: Sequence[Run], keys: Sequence[Run], pattern: Pattern, device: torch.device) -> Pairs:
    """Yield pieces of queries and keys that see each other: where they are in their tensors, and their mask.

    Args:
        queries: Positions of the queries.
        keys: Positions of the keys.
        pattern: Which keys a query sees.
        device: Where to make masks.
    """
    for here, asking in pieces(queries):
        for there, seen in pieces(keys):
            if not pattern.sees_nothing(asking, seen):
                yield here, there, pattern.mask(asking, seen, device)


def _scores(q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor | None, scale: float) -> torch.Tensor:
    """Return the scores of a piece, of which those that are not seen are minus infinity: (B, K, G, Q, T)."""
    scores = q @ k.transpose(-1, -2) * scale
    return scores if seen is None else scores.masked_fill(~seen[:, :, None], -torch.inf)


def join(
    out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, among: Pairs, scale: float
) -> None:
    """Let queries see more keys.

    Args:
        out: Their attention so far, which is changed.
        lse: Its log of the sum of exponentials, which is changed.
        q: The queries.
        k: The keys.
        v: Their values.
        among: Pieces that see each other.
        scale: Factor of the scores.

    Shape:
        out (B, K, G, Q, E), lse (B, K, G, Q), q (B, K, G, Q, D), k (B, K, 1, T, D), v (B, K, 1, T, E)
    """
    for here, there, seen in among:
        scores = _scores(q[..., here, :], k[..., there, :], seen, scale)
        before = lse[..., here]
        now = torch.logaddexp(before, scores.logsumexp(-1))
        # a query that has seen no key has minus infinity, and no share of anything
        safe = now.masked_fill(now == -torch.inf, 0.0)
        share = (scores - safe[..., None]).exp_()
        out[..., here, :] = out[..., here, :] * (before - safe).exp()[..., None] + share @ v[..., there, :]
        lse[..., here] = now


def add_gradients(
    gradients: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    k: torch.Tensor,
    v: torch.Tensor,
    among: Pairs,
    scale: float,
) -> None:
    """Add the gradients of attention whose result is known.

    Args:
        gradients: Those of queries, keys and values so far, which are changed.
        given: The queries; their log of the sum of exponentials; the gradient of the result; for each query the sum of
            result times gradient, less the gradient of its log.
        k: The keys.
        v: Their values.
        among: Pieces that see each other.
        scale: Factor of the scores.

    Shape:
        As for `join`.
    """
    (q_gradient, k_gradient, v_gradient), (q, lse, out_gradient, delta) = gradients, given
    for here, there, seen in among:
        query, key, gradient = q[..., here, :], k[..., there, :], out_gradient[..., here, :]
        share = (_scores(query, key, seen, scale) - lse[..., here, None]).exp_()
        of_share = gradient @ v[..., there, :].transpose(-1, -2)
        of_scores = share * (of_share - delta[..., here, None]) * scale
        q_gradient[..., here, :] += of_scores @ key
        k_gradient[..., there, :] += (of_scores.transpose(-1, -2) @ query).sum(2, keepdim=True)
        v_gradient[..., there, :] += (share.transpose(-1, -2) @ gradient).sum(2, keepdim=True)
