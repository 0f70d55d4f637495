"""Brings batches to the device: at once, or one ahead on another stream of an accelerator."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from accel_ops import send_to_device
from accel_state import LoaderPass

from accel_data.sharding.rank_slices import with_last


def on_device(
    batches: Iterator[Any], epoch: LoaderPass, device: torch.device | str | None, *, non_blocking: bool
) -> Iterator[Any]:
    """The batches on `device`; `epoch` is true of each when it comes.

    With `non_blocking` on an accelerator the next batch is copied while the script works on this one.
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


class CopyStream:
    """A stream of an accelerator on which copies are made while the current stream computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream_for_copies(device)

    def send(self, batch: Any) -> tuple[Any, Any]:
        """The batch on the device, as a copy that was only asked for, and the event of its end."""
        # The allocator hands the memory of a dropped batch to the next copy. Until this wait the current stream was
        # asked for everything that reads a dropped batch, so that the copy overwrites nothing that is still read.
        # record_stream would reach neither tensors inside of objects with a `to` of their own nor tensors on the CPU.
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            moved = send_to_device(batch, self._device, non_blocking=True)
        return moved, self._stream.record_event()

    def await_copy(self, copied: Any) -> None:
        """Lets the current stream wait for the event of a copy."""
        torch.accelerator.current_stream(self._device).wait_event(copied)


@functools.cache
def _stream_for_copies(device: torch.device) -> torch.Stream:
    """The one stream for copies to a device: the allocator keeps memory apart for each stream that has used some."""
    return torch.Stream(device)


def _one_ahead(batches: Iterator[Any], epoch: LoaderPass, copies: CopyStream) -> Iterator[Any]:
    sent = ((copies.send(batch), (epoch.last, epoch.tail, epoch.at)) for batch in batches)
    for ((moved, copied), facts), _ in with_last(sent):
        copies.await_copy(copied)
        epoch.last, epoch.tail, epoch.at = facts
        yield moved
