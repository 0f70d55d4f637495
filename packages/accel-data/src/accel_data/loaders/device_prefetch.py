"""Move batches to the device, at once or one ahead on another stream of an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
from accel_ops import send_to_device
from accel_ops.copy_stream import CopyStream

from accel_data.resume.epoch_pass import EpochPass
from accel_data.sharding.rank_slices import with_last


def on_device(
    batches: Iterator[Any], epoch: EpochPass, device: torch.device | str | None, *, non_blocking: bool
) -> Iterator[Any]:
    """Return an iterator over the batches on a device.

    Args:
        batches: The batches.
        epoch: The record of the epoch, which describes each batch when it is yielded.
        device: Device to move to, or None to leave batches where they are.
        non_blocking: On an accelerator, copy the next batch while the script uses the current one.
    """
    if device is None:
        return batches
    place = torch.device(device)
    if place.type == "cpu" and not torch.accelerator.is_available():
        return batches  # walking through every batch would cost time and change nothing
    # XLA has no streams: it collects operations, and never lets the script wait for a copy
    if non_blocking and place.type not in ("cpu", "meta", "xla"):
        return _one_ahead(batches, epoch, CopyStream(place))
    return (send_to_device(batch, place, non_blocking=non_blocking) for batch in batches)


def _one_ahead(batches: Iterator[Any], epoch: EpochPass, copies: CopyStream) -> Iterator[Any]:
    sent = ((copies.send(batch), (epoch.last, epoch.tail, epoch.at)) for batch in batches)
    for ((moved, copied), facts), _ in with_last(sent):
        copies.await_copy(copied)
        epoch.last, epoch.tail, epoch.at = facts
        yield moved


def timed(batches: Iterator[Any], on_wait: Callable[[float], None]) -> Iterator[Any]:
    """Yield the batches, and report how long each was waited for.

    Args:
        batches: The batches.
        on_wait: Function that gets the seconds for each batch.
    """
    asked = perf_counter()
    for batch in batches:
        on_wait(perf_counter() - asked)
        yield batch
        asked = perf_counter()
