"""One order on all ranks: rank 0 draws as plain PyTorch would, the others follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accel_state import Transport
from torch.utils.data import RandomSampler


def generator_owner(*roots: Any) -> Any | None:
    """The first object, searched through `sampler` and `batch_sampler`, that has a `generator` for its order."""
    for candidate in _chain(roots):
        if hasattr(candidate, "generator") and isinstance(candidate.generator, torch.Generator | None):
            return candidate
    return None


def _chain(roots: tuple[Any, ...]) -> Iterator[Any]:
    for root in roots:
        if root is not None:
            yield root
            yield from _chain((getattr(root, "batch_sampler", None), getattr(root, "sampler", None)))


class FollowRankZero:
    """Puts the generator of a sampler or dataset where that of rank 0 stands.

    Rank 0 is not touched: its order is the one that the same script draws alone. A sampler without a generator of its
    own draws from torch's default one; on the other ranks it gets a private copy, so that their default generators,
    which augmentation uses, stay as they are.

    Collective: every rank of the transport must call.
    """

    def __init__(self, owner: Any, transport: Transport) -> None:
        self.owner = owner
        self.transport = transport
        self.draws_from_default = owner.generator is None

    def __call__(self) -> None:
        """Collective: every rank of the transport must call."""
        source = torch.default_generator if self.draws_from_default else self.owner.generator
        state = self.transport.broadcast(source.get_state(), 0)
        if self.transport.rank == 0:
            return
        if not self.draws_from_default:
            self.owner.generator.set_state(state)
            return
        twin = torch.Generator()
        twin.set_state(state)
        if isinstance(self.owner, RandomSampler):
            # Without a generator it draws a seed from the default one, and its order from a generator with that seed.
            twin.manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=twin).item()))
        self.owner.generator = twin
