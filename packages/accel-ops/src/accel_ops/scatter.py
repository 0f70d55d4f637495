"""Send each rank its own part of nested data that one rank has."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from accel_comm import Transport
from accel_comm.transports import serialization

from accel_ops import around_tensors
from accel_ops.move import send_to_device
from accel_ops.packing import in_groups, to_bytes, to_tensors, travels_small

#: whether tensors are sent apart from the message, and the length of what is pickled in it
_FRONT = struct.Struct("<?I")
_ONLY_NUMBERS = _FRONT.pack(False, 0)


class Layout(NamedTuple):
    """The data of a part without the values of its tensors.

    Args:
        around: A pickle of the data around its tensors.
        tensors: Dtype, shape and device type of each tensor.
    """

    around: bytes
    tensors: list[tuple[torch.dtype, tuple[int, ...], str]]


@final
class Scatter:
    """A channel by which rank `source` sends each other rank its own parts of data, in order.

    The bytes of small tensors are in the message. Larger tensors follow it, through the group of their device. A
    message describes the layout of a part only if the part before had another one. Data other than tensors in dicts,
    lists and tuples is pickled each time.

    Args:
        what: Name of the operation, for error messages.
        transport: Transport of the ranks that take part.
        source: Rank that sends.
        device: Device that sends the parts that are too large for a message, if the transport can exchange its tensors.
    """

    def __init__(
        self, what: str, transport: Transport, source: int = 0, *, device: torch.device | str | None = None
    ) -> None:
        self._what, self._source = what, source
        self._messages = messages = transport.point_to_point
        self._device = device if device is not None and messages.supports_device(torch.device(device).type) else None
        self._room = messages.inline_bytes - _FRONT.size
        self._others = [rank for rank in range(transport.size) if rank != source]
        #: of the newest part of each other rank, at the source: its outline, and whether it was small
        self._newest: list[tuple[Any, bool]] = [(None, True)] * len(self._others)
        #: the layout of the newest part, at any other rank
        self._layout: Layout | None = None

    def send(self, parts: Sequence[Any], note: Any = None) -> None:
        """Send each other rank its part, and all of them a note.

        Args:
            parts: One part for each rank, in rank order; the part of this rank is not sent.
            note: An object to pickle.

        Raises:
            Exception: The error of an object that cannot be pickled, before anything is sent.

        Collective:
            Every other rank must call `receive`.
        """
        payloads = self._only_numbers(parts) if note is None else None
        if payloads is not None:
            self._messages.scatter(self._what, payloads, self._source)
            return
        others = [parts[rank] for rank in self._others]
        taken = self._taken_apart(others)
        apart = not all([part.is_small for part in taken])
        if apart and self._device is not None:
            taken = self._taken_apart([send_to_device(part, self._device, non_blocking=True) for part in others])
        payloads = [_message(part, note, apart=apart) for part in taken]
        payloads.insert(self._source, b"")
        self._newest = [(part.outline, part.is_small) for part in taken]
        self._messages.scatter(self._what, payloads, self._source)
        if apart:
            sent = [_messages_of(part.tensors)[1] for part in taken]
            sent.insert(self._source, [])
            self._messages.scatter_tensors(self._what, sent, [], self._source)

    def _only_numbers(self, parts: Sequence[Any]) -> list[bytes] | None:
        """Return the messages if all parts are small and laid out as those before them, and otherwise None."""
        payloads = [b""] * len(parts)
        for rank, (known, is_small) in zip(self._others, self._newest, strict=True):
            tensors: list[torch.Tensor] = []
            if known is None or not is_small or _outline(parts[rank], tensors) != known or _has_twins(tensors):
                return None
            payloads[rank] = _ONLY_NUMBERS + to_bytes(tensors)
        return payloads

    def _taken_apart(self, parts: Sequence[Any]) -> list[_Part]:
        room = self._room
        return [_taken_apart(part, *before, room) for part, before in zip(parts, self._newest, strict=True)]

    def receive(self) -> tuple[Any, Any]:
        """Return the part of this rank, and the note.

        Collective:
            Rank `source` must call `send`, and every other rank `receive`.
        """
        message = self._messages.scatter(self._what, [], self._source)
        apart, length = _FRONT.unpack_from(message)
        start, note = _FRONT.size + length, None
        if length:
            layout, note = serialization.unpack(message[_FRONT.size : start])
            self._layout = layout or self._layout
        around, looks = self._layout or Layout(b"", [])
        if apart:
            made = [torch.empty(shape, dtype=dtype, device=kind) for dtype, shape, kind in looks]
            tensors, received = _messages_of(made)
            self._messages.scatter_tensors(self._what, [], received, self._source)
        else:
            tensors = to_tensors(message[start:], [(shape, dtype) for dtype, shape, _ in looks])
        return around_tensors.unpack(around, tensors), note


class _Part(NamedTuple):
    """The data of a part and its tensors, where equal outlines mean equal layouts."""

    data: Any
    tensors: list[torch.Tensor]
    is_small: bool
    outline: Any = None
    around: bytes = b""
    is_known: bool = False


def _taken_apart(data: Any, known: Any, known_is_small: bool, room: int) -> _Part:
    """Return the part of a rank, whose layout is known if its outline is that of the part before."""
    tensors: list[torch.Tensor] = []
    outline = _outline(data, tensors)
    if _has_twins(tensors):
        outline = None  # a tensor twice is to arrive as a tensor twice
    if outline is not None:
        is_known = outline == known
        is_small = known_is_small if is_known else travels_small(tensors, room)
        if is_small or len({tensor.device for tensor in tensors}) == 1:
            return _Part(data, tensors, is_small, outline, is_known=is_known)
    around, tensors = around_tensors.pack(data)
    if len({tensor.device for tensor in tensors if not tensor.is_cpu}) > 1:  # the receiver has them all on one
        around, tensors = serialization.pack(data), []
    return _Part(data, tensors, travels_small(tensors, room), around=around)


def _has_twins(tensors: list[torch.Tensor]) -> bool:
    return len(set(map(id, tensors))) < len(tensors)


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Append the tensors of a value, and return what is equal for equal layouts, or None for other data."""
    if serialization.is_bare(value):
        tensors.append(value)
        return value.dtype, value.shape, value.device
    kind: type = type(value)
    if kind is dict:
        if not all([type(key) is str for key in value]):
            return None
        inner = [*value, *[_outline(item, tensors) for item in value.values()]]
    elif kind is list or kind is tuple:
        inner = [_outline(item, tensors) for item in value]
    else:
        return None
    return None if None in inner else (kind, *inner)


def _message(part: _Part, note: Any, *, apart: bool) -> bytes:
    if part.is_known and note is None and not apart:
        return _ONLY_NUMBERS + to_bytes(part.tensors)
    head, layout = b"", None
    if not part.is_known:
        around = part.around or around_tensors.pack(part.data)[0]
        layout = Layout(around, [(tensor.dtype, tuple(tensor.shape), tensor.device.type) for tensor in part.tensors])
    if layout is not None or note is not None:
        head = serialization.pack((layout, note))
    return _FRONT.pack(apart, len(head)) + head + (b"" if apart else to_bytes(part.tensors))


def _messages_of(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the tensors, some perhaps copied, and the tensors of bytes without gaps that have their values."""
    messages: list[torch.Tensor] = []

    def kept(flat: torch.Tensor) -> torch.Tensor:
        messages.append(flat.view(torch.uint8))
        return flat

    return in_groups(tensors, kept), messages
