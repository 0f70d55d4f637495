"""Divide a round that rank 0 reads for all into a part for every rank, and a note."""

from __future__ import annotations

from typing import Any, NamedTuple

from accel_ops.batch_size import can_be_cut, cut, joined, samples_in
from accel_state import BatchPadding

from accel_data.sharding.rank_slices import Ending, divided_evenly, samples_in_slices


class BatchNote(NamedTuple):
    """A note beside the parts of a batch of the whole job.

    Args:
        tail: The real samples of each rank, or None if all are real.
        last: Whether this is the last batch.
        ended: Whether the message has no parts, as the epoch has ended.
        failure: The error of rank 0, or None.
        generators: Random states of rank 0 after reading, for processes that are served the same part.
    """

    tail: BatchPadding | None = None
    last: bool = False
    ended: bool = False  # this message has no parts
    failure: str | None = None
    generators: dict[str, Any] | None = None


def slices_of(
    batches: list[Any], start: list[Any], world: int, ending: Ending, *, split: bool = False
) -> tuple[list[Any], BatchPadding | None]:
    """Divide a round into a part for each rank.

    Whole batches of one size stay as they are. Others are joined and divided evenly. Batches that cannot be joined stay
    whole, and a rank for which none is left gets the first one again.

    Args:
        batches: The batches of the round.
        start: The first round of the epoch.
        world: Number of ranks.
        ending: What happens to samples that do not fill a round.
        split: Whether each batch is to be divided.

    Returns:
        The parts in rank order, and the real samples of each rank, or None if all are real.

    Raises:
        ValueError: `split` is set, and a batch has parts without an entry for each sample.
    """
    sizes = [samples_in(batch) for batch in batches]
    if len(batches) == world and len(set(sizes)) == 1:
        return batches, BatchPadding(tuple(sizes), tuple(sizes)) if sizes[0] < samples_in(start[0]) else None
    if split and not all(map(can_be_cut, batches)):
        raise ValueError(
            f"split_batches=True divides each batch among {world} processes, and this {type(batches[0]).__name__} has"
            " parts without an entry for each sample; let the collate_fn give tensors and lists with an entry for each,"
            " or use split_batches=False"
        )
    if all(map(can_be_cut, batches + start)):
        try:
            return _divided(joined(batches), joined(start), world, ending)
        except RuntimeError:
            pass  # of different shapes: handed on whole, as what cannot be cut
    parts = batches + [batches[0]] * (world - len(batches))
    real = sizes + [0] * (world - len(batches))
    return parts, BatchPadding(tuple(real), tuple(map(samples_in, parts))) if len(batches) < world else None


def _divided(whole: Any, first: Any, world: int, ending: Ending) -> tuple[list[Any], BatchPadding | None]:
    real, rows = samples_in(whole), -(-samples_in(whole) // world)
    if ending is Ending.EXACT and real < rows * world:
        slices, padding = divided_evenly(real, world)
        return [cut(whole, part) for part in slices], padding
    # also if it comes out even: what was repeated for a full batch has more entries
    short = real < rows * world or rows < samples_in(first) // world
    counts = tuple(samples_in_slices(real, rows, world))
    while (have := samples_in(whole)) < rows * world:
        whole = joined([whole, cut(first, slice(0, rows * world - have))])
    parts = [cut(whole, slice(rank * rows, (rank + 1) * rows)) for rank in range(world)]
    return parts, BatchPadding(counts, (rows,) * world) if short else None
