"""Track how far a script has come in a pass over a loader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

from accel_state import BatchPadding


@final
@dataclass(slots=True, eq=False)
class EpochPass:
    """A pass over a loader, which is a `LoaderPass` for the window of micro-batches.

    Args:
        loader: The loader, or None once the pass is over.
        rows: Samples of a full batch of this rank, or None if batches vary.
        last: Whether the current batch is the last one.
        tail: The real samples of the current batch, or None if all samples of a full batch are real.
        at: The position after the current batch.
        at_step: The position at the newest optimizer step.
        in_micro_batch: Whether a batch of the pass was in a micro-batch.
        batches: Batches since the last micro-batch began.
        ahead: Batches that were read before the last micro-batch began, beside one for each micro-batch.
        side_by_side: Micro-batches in a row with one batch of the pass each, as of loaders that are read side by side.
        inner: Whether the pass began inside of another that is read so: an evaluation, or a loader begun again and
            again.
        family: What the loader shares with its copies alone, which lack the first batches.
    """

    loader: Any
    rows: int | None = None
    last: bool = False
    tail: BatchPadding | None = None
    at: Any = None
    at_step: Any = None
    in_micro_batch: bool = False
    batches: int = 0
    ahead: int = 0
    side_by_side: int = 0
    inner: bool = False
    family: Any = None

    def begin_inside(self, others: Iterable[Any]) -> None:
        """Note which passes run when this one begins.

        Args:
            others: The other passes.
        """
        self.inner = any(other.side_by_side > 1 and other.loader is not self.loader for other in others)

    def begin_micro_batch(self, *, active: bool) -> bool:
        """Note that a micro-batch begins, and return whether the data of the window ends with it.

        A pass that an evaluation left standing, at its last batch maybe, does not come with each micro-batch.

        Args:
            active: Whether the newest batch is one of this pass.
        """
        alike = self.batches == 1
        ends = self.last and not self.inner and (active or (alike and self.side_by_side > 0))
        if not alike:
            self.ahead = max(self.ahead + self.batches - 1, 0)
        self.side_by_side, self.batches = self.side_by_side + 1 if alike else 0, 0
        self.in_micro_batch = active or self.in_micro_batch
        return ends

    @property
    def reads_ahead(self) -> bool:
        """True if micro-batches are counted, and more batches were read than micro-batches have begun."""
        return self.in_micro_batch and self.ahead + self.batches > 0

    def note_step(self) -> None:
        """Note that an optimizer step is due, which sees all batches until now."""
        self.at_step = self.at
