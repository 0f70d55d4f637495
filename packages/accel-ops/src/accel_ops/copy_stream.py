"""Copy nested data to an accelerator while its current stream computes."""

import functools
from typing import Any

import torch

from accel_ops.move import send_to_device


class CopyStream:
    """A stream of an accelerator that copies while the current stream computes."""

    def __init__(self, device: torch.device) -> None:
        index = torch.accelerator.current_device_index() if device.index is None else device.index
        self._device = torch.device(device.type, index)
        self._stream = _stream_for_copies(self._device)

    def send(self, batch: Any) -> tuple[Any, Any]:
        """Start a copy of a batch to the device.

        Returns:
            The batch on the device, and the event at the end of the copy. Call `await_copy` with the event before the
            batch is used.
        """
        # The allocator hands the memory of a dropped batch to the next copy. Until this wait the current stream was
        # asked for everything that reads a dropped batch, so that the copy overwrites nothing that is still read.
        # record_stream would reach neither tensors inside of objects with a `to` of their own nor tensors on the CPU.
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            moved = send_to_device(batch, self._device, non_blocking=True)
        return moved, self._stream.record_event()

    def await_copy(self, copied: Any) -> None:
        """Make the current stream wait for the end of a copy.

        Args:
            copied: The event that `send` has returned.
        """
        torch.accelerator.current_stream(self._device).wait_event(copied)


@functools.cache
def _stream_for_copies(device: torch.device) -> torch.Stream:
    """Return the one stream for copies to a device, as the allocator keeps memory apart for each stream."""
    return torch.Stream(device)
