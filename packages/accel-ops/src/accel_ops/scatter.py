"""Nested data that one rank has for each of the others: each receives its own part, tensors as their numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from accel_state import Transport
from accel_state.transports import serialization

from accel_ops.move import send_to_device
from accel_ops.packing import in_groups, to_bytes, to_tensors, travels_small

#: whether tensors travel apart from the message, and the length of what is pickled in it
_FRONT = struct.Struct("<?I")
_ONLY_NUMBERS = _FRONT.pack(False, 0)


class Layout(NamedTuple):
    """Data without the numbers of its tensors: a pickle around them, and dtype, shape and device type of each."""

    around: bytes
    tensors: list[tuple[torch.dtype, tuple[int, ...], str]]


@final
class Scatter:
    """Sends parts of data from rank `source` to each other rank; messages come in the order in which they are sent.

    Tensors in dicts, lists and tuples travel as their numbers: in the message if they are few, and otherwise behind it,
    by the group of their device. The layout of a part travels if it is not that of the part before. In other data the
    tensors travel likewise, and the rest is pickled each time.

    Parts that are too large for the message are sent from `device`, if the transport carries tensors of such devices.
    """

    def __init__(
        self, what: str, transport: Transport, source: int = 0, *, device: torch.device | str | None = None
    ) -> None:
        self._what, self._transport, self._source = what, transport, source
        self._device = device if device is not None and transport.carries(torch.device(device).type) else None
        self._room = transport.scatter_room - _FRONT.size
        self._others = [rank for rank in range(transport.size) if rank != source]
        #: of the newest part of each other rank, at the source: its outline, and whether it was small
        self._newest: list[tuple[Any, bool]] = [(None, True)] * len(self._others)
        #: the layout of the newest part, at any other rank
        self._layout: Layout | None = None

    def send(self, parts: Sequence[Any], note: Any = None) -> None:
        """Sends each rank its part, in rank order, and the note, which is pickled; the source's own stays here.

        Raises: the error of what cannot be pickled, before anything is sent.
        Collective: every other rank must receive.
        """
        payloads = self._only_numbers(parts) if note is None else None
        if payloads is not None:
            self._transport.scatter(self._what, payloads, self._source)
            return
        others = [parts[rank] for rank in self._others]
        taken = self._taken_apart(others)
        apart = not all([part.is_small for part in taken])
        if apart and self._device is not None:
            taken = self._taken_apart([send_to_device(part, self._device, non_blocking=True) for part in others])
        payloads = [_message(part, note, apart=apart) for part in taken]
        payloads.insert(self._source, b"")
        self._newest = [(part.outline, part.is_small) for part in taken]
        self._transport.scatter(self._what, payloads, self._source)
        if apart:
            sent = [_messages_of(part.tensors)[1] for part in taken]
            sent.insert(self._source, [])
            self._transport.scatter_tensors(self._what, sent, [], self._source)

    def _only_numbers(self, parts: Sequence[Any]) -> list[bytes] | None:
        """The messages if all parts are small and laid out as those before them; None if a part is not."""
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
        """The part of this rank, and the note.

        Collective: the source must send, and every other rank receive.
        """
        message = self._transport.scatter(self._what, [], self._source)
        apart, length = _FRONT.unpack_from(message)
        start, note = _FRONT.size + length, None
        if length:
            layout, note = serialization.unpack(message[_FRONT.size : start])
            self._layout = layout or self._layout
        around, looks = self._layout or Layout(b"", [])
        if apart:
            made = [torch.empty(shape, dtype=dtype, device=kind) for dtype, shape, kind in looks]
            tensors, received = _messages_of(made)
            self._transport.scatter_tensors(self._what, [], received, self._source)
        else:
            tensors = to_tensors(message[start:], [(shape, dtype) for dtype, shape, _ in looks])
        return serialization.unpack_around(around, tensors), note


class _Part(NamedTuple):
    """Data, and its tensors; equal outlines have equal layouts. Without an outline, the pickle around the tensors."""

    data: Any
    tensors: list[torch.Tensor]
    is_small: bool
    outline: Any = None
    around: bytes = b""
    is_known: bool = False


def _taken_apart(data: Any, known: Any, known_is_small: bool, room: int) -> _Part:
    """The part of a rank; its layout is known if its outline is."""
    tensors: list[torch.Tensor] = []
    outline = _outline(data, tensors)
    if _has_twins(tensors):
        outline = None  # a tensor twice is to arrive as a tensor twice
    if outline is not None:
        is_known = outline == known
        is_small = known_is_small if is_known else travels_small(tensors, room)
        if is_small or len({tensor.device for tensor in tensors}) == 1:
            return _Part(data, tensors, is_small, outline, is_known=is_known)
    around, tensors = serialization.pack_around(data)
    if len({tensor.device for tensor in tensors if not tensor.is_cpu}) > 1:  # the receiver has them all on one
        around, tensors = serialization.pack(data), []
    return _Part(data, tensors, travels_small(tensors, room), around=around)


def _has_twins(tensors: list[torch.Tensor]) -> bool:
    return len(set(map(id, tensors))) < len(tensors)


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What is equal for data of equal layouts, after its tensors were noted; None for other than nested tensors."""
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
        around = part.around or serialization.pack_around(part.data)[0]
        layout = Layout(around, [(tensor.dtype, tuple(tensor.shape), tensor.device.type) for tensor in part.tensors])
    if layout is not None or note is not None:
        head = serialization.pack((layout, note))
    return _FRONT.pack(apart, len(head)) + head + (b"" if apart else to_bytes(part.tensors))


def _messages_of(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors, some perhaps copied, and the tensors of bytes without gaps that have their numbers."""
    messages: list[torch.Tensor] = []

    def kept(flat: torch.Tensor) -> torch.Tensor:
        messages.append(flat.view(torch.uint8))
        return flat

    return in_groups(tensors, kept), messages
