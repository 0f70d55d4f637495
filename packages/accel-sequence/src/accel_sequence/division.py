"""The division of one batch: who holds which part of its sequences, and which positions are real."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.functional import pad

from accel_sequence.layout import SequenceLayout
from accel_sequence.peers import SequencePeers


class CannotDivide(ValueError):
    """A model or a batch cannot be divided along the sequence."""


@dataclass(frozen=True, eq=False, slots=True)
class Ranks:
    """The ranks that share sequences, as this process sees them.

    Args:
        layout: How they divide a sequence.
        all: All of them.
        heads: Those that divide heads among them; None if there is nobody else.
        ring: Those of the ring; None if there is nobody else.
    """

    layout: SequenceLayout
    all: SequencePeers
    heads: SequencePeers | None = None
    ring: SequencePeers | None = None

    def __deepcopy__(self, memo: object) -> Ranks:
        return self  # a copy of a model has the same


@dataclass(eq=False, slots=True, weakref_slot=True)
class Division:
    """The division of the sequences of one forward.

    Args:
        ranks: The ranks that share them.
        length: The length of the sequences.
        real: Positions that are no padding of the script's, by row; all without it.
        documents: The number of the document of each position; one without it.
        superseded: Whether a forward of whole outputs came after.
        spent: Whether a backward has begun at its outputs.

    Shape:
        real and documents (B or 1, padded length)
    """

    ranks: Ranks
    length: int
    real: torch.Tensor | None = None
    documents: torch.Tensor | None = None
    superseded: bool = False
    spent: bool = False

    @property
    def padded(self) -> int:
        """The length that is divided."""
        return self.ranks.layout.padded(self.length)

    @property
    def part(self) -> int:
        """The length of a part."""
        return self.padded // self.ranks.layout.size

    def positions(self, device: torch.device | str | None = None) -> torch.Tensor:
        """Return the places of this rank's part in the whole sequence, of which padding has the first.

        Args:
            device: Where to make them.

        Shape:
            (1, part)
        """
        return self.local(torch.arange(self.length, device=device)[None])

    def end(self, device: torch.device) -> torch.Tensor | None:
        """Return where padding at the end is not, or None if there is none.

        Args:
            device: Where to make it.

        Shape:
            (1, padded length)
        """
        if self.padded == self.length:
            return None
        return (torch.arange(self.padded, device=device) < self.length)[None]

    def pad(self, x: torch.Tensor, dim: int, value: float) -> torch.Tensor:
        """Return a tensor that is as long as the sequence that is divided.

        Args:
            x: A tensor of the whole sequence.
            dim: The dim of the sequence.
            value: The number of what is added.

        Raises:
            CannotDivide: It is not as long as the sequences.
        """
        if x.shape[dim] != self.length:
            raise CannotDivide(
                f"a tensor of shape {tuple(x.shape)} has no part of sequences of {self.length} tokens; give it as the"
                " loader does: whole, not shifted, and not divided already"
            )
        missing = self.padded - x.shape[dim]
        if not missing:
            return x
        return pad(x, (0, 0) * (x.ndim - 1 - dim % x.ndim) + (0, missing), value=value)

    def local(self, x: torch.Tensor, dim: int = 1, value: float = 0) -> torch.Tensor:
        """Return the part of this rank.

        Args:
            x: A tensor of the whole sequence.
            dim: The dim of the sequence.
            value: The number of padding.
        """
        places = self.ranks.layout.positions(self.ranks.all.rank, self.padded).to(x.device)
        return self.pad(x, dim, value).index_select(dim, places)

    def whole(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Return the whole sequence for the part of this rank, without gradients.

        Args:
            x: A tensor of the part.
            dim: The dim of the sequence.

        Collective:
            Every rank must call.
        """
        parts = torch.cat(list(self.ranks.all.gather(x.detach()).unbind()), dim)
        back = self.ranks.layout.order(self.padded).argsort()[: self.length].to(x.device)
        return parts.index_select(dim, back)

    def shared_sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks, with the gradient that the mean of all ranks' gradients needs.

        Args:
            x: The share of this rank.

        Collective:
            Every rank must call.
        """
        return cast("torch.Tensor", _Sum.apply(x, self.ranks.all))  # type: ignore[no-untyped-call]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, peers: SequencePeers) -> torch.Tensor:
        ctx.size = peers.size
        return peers.sum(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # each rank has the sum, and calls backward on it: gradients are averaged over ranks afterwards
        return gradient * ctx.size, None


_ACTIVE: ContextVar[Division | None] = ContextVar("accel_sequence_division")


def active() -> Division | None:
    """Return the division of the forward that runs, or None."""
    return _ACTIVE.get(None)


def latest() -> Division | None:
    """Return the division of the forward that runs, and outside of forwards that of the newest with gradients."""
    return _ACTIVE.get(newest())


def of_results() -> Division | None:
    """Return the division of what a script computes from the outputs of the newest forward, or None for whole ones.

    Raises:
        CannotDivide: A forward without gradients came after one whose backward has not come, so nobody knows of which.
    """
    division = current() or latest()
    if division is None or not division.superseded:
        return division
    if division.spent:
        return None
    if not torch.is_grad_enabled():
        raise CannotDivide(
            "a forward without gradients came after one that waits for its backward, and has whole outputs where the"
            " other has parts; call this with gradients enabled for the outputs of parts, or after their backward"
        )
    return division


def current() -> Division | None:
    """Return the division of the forward that runs, or is run again in a backward, or None.

    Raises:
        CannotDivide: A backward runs again what belongs to no forward that is known.
    """
    division, task = _ACTIVE.get(None), torch._C._current_graph_task_id()
    if division is not None or task == -1 or newest() is None:
        return division
    if not _IN_BACKWARD or _IN_BACKWARD[0][0] != task:
        raise CannotDivide(
            "a backward computes activations again, and belongs to no output of a prepared model; return tensors from"
            " its forward, or leave out activation checkpointing"
        )
    return _IN_BACKWARD[0][1]


def announce(outputs: Sequence[torch.Tensor], division: Division) -> None:
    """Let backwards that begin at outputs of a forward know its division."""

    def begin(_: torch.Tensor) -> None:
        division.spent = True
        _IN_BACKWARD[:] = [(torch._C._current_graph_task_id(), division)]

    for output in outputs:
        if output.requires_grad:
            output.register_hook(begin)  # type: ignore[no-untyped-call] # of torch


@contextmanager
def dividing(division: Division | None) -> Iterator[None]:
    """Let the block compute on the parts of a division, or on whole sequences for None."""
    token = _ACTIVE.set(division)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


#: the division of the newest forward, which its model keeps
_NEWEST: list[weakref.ref[Division]] = []
#: the backward that runs, by number, and the division of the forward that it has come to
_IN_BACKWARD: list[tuple[int, Division]] = []


def newest() -> Division | None:
    """Return the division of the newest forward with gradients of a prepared model, or None."""
    return _NEWEST[0]() if _NEWEST else None


def remember(division: Division) -> None:
    """Let a division be that of the newest forward with gradients."""
    _NEWEST[:] = [weakref.ref(division)]


def supersede() -> None:
    """Note that the newest outputs are whole, as there was a forward without gradients."""
    division = newest()
    if division is not None:
        division.superseded = True
