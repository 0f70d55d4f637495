"""Find what draws the order of a loader, under any number of samplers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, Sampler


def samplers_under(*roots: Any) -> Iterator[Any]:
    """Yield the objects that draw an order, from the outermost in, through `batch_sampler` and `sampler`.

    Args:
        *roots: Samplers, batch samplers or datasets to begin with; None is left out.
    """
    for root in roots:
        if root is not None:  # by identity: the truth of a sampler is its length, which it may not have
            yield root
            yield from samplers_under(getattr(root, "batch_sampler", None), getattr(root, "sampler", None))


def innermost_sampler(sampler: Any) -> Any:
    """Return the sampler that draws the order, under any number of batch samplers.

    Args:
        sampler: A sampler or batch sampler, or None, for which the result is None.
    """
    under = [inner for inner in samplers_under(sampler) if isinstance(inner, Sampler) or hasattr(inner, "__iter__")]
    return under[-1] if under else None


def generator_owner(*roots: Any) -> Any | None:
    """Return the first object with a `generator` for its order, or None.

    The objects are searched through `sampler` and `batch_sampler`.

    Args:
        *roots: Samplers, batch samplers or datasets to begin with.
    """
    for candidate in samplers_under(*roots):
        if hasattr(candidate, "generator") and isinstance(candidate.generator, torch.Generator | None):
            return candidate
    return None


def follows_torch(batch_sampler: object) -> bool:
    """Return whether an object cuts the order of its sampler into batches as torch's BatchSampler does."""
    return isinstance(batch_sampler, BatchSampler) and type(batch_sampler).__iter__ is BatchSampler.__iter__
