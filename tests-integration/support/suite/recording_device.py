"""Stands in for a GPU on a machine without one: tensors in memory of the CPU that claim to be on a device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, final
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda:0")
_aten = torch.ops.aten
_JOINS = (_aten.stack.default, _aten.cat.default)
_COPIES = (_aten._to_copy.default, _aten.copy_.default)
#: the host has to know how many elements they give, or whether all are equal
_WAITING = {
    _aten.bincount,
    _aten.equal,
    _aten.masked_select,
    _aten.nonzero,
    _aten._unique2,
    _aten.unique_consecutive,
    _aten.unique_dim,
}
_BY_INDEX = {_aten.index, _aten.index_put, _aten.index_put_}
_MASKS = (torch.bool, torch.uint8)
_TORCH, _HERE = str(Path(torch.__file__).parent), str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class HostWait:
    """A moment in which the host waits for the device: for what, at which line, and for which line outside of torch."""

    what: str
    line: str
    caller: str


class DeviceTensor(torch.Tensor):
    """A tensor that claims to be on a device; its numbers are in memory of the CPU."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, device: torch.device) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=device
        )
        made.numbers = numbers
        return made

    @classmethod
    # torch declares it without types
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} of a DeviceTensor outside of its RecordingDevice")


@dataclass(frozen=True, slots=True)
class _Event:
    """Marks what a stream was asked for so far."""

    device: RecordingDevice
    what: str

    def synchronize(self) -> None:
        """Notes that the host waits for it, which leaves the device with all work that it was asked for since."""
        self.device.calls.append(f"the host waits for {self.what}")
        self.device.finish_copies()

    def query(self) -> bool:
        """Whether the work is done, which is so when it was asked for; a question is no call."""
        return True


class _Stream:
    """A stream that notes for whom it waits."""

    def __init__(self, device: RecordingDevice, name: str) -> None:
        self._device, self._name = device, name
        self.device = device.device
        self._before: list[str] = []

    def wait_stream(self, other: _Stream) -> None:
        self._device.calls.append(f"{self._name} waits for {other._name}")

    def wait_event(self, event: _Event) -> None:
        self._device.calls.append(f"{self._name} waits for {event.what}")

    def record_event(self) -> _Event:
        return _Event(self._device, f"the copies of {self._name}")

    def __enter__(self) -> None:
        self._before.append(self._device.stream)
        self._device.stream = self._name

    def __exit__(self, *_: object) -> None:
        self._device.stream = self._before.pop()


@final
class RecordingDevice:
    """A device without hardware, for the thread that enters `installed`; `calls` has what it was asked for, in order.

    Copies to and from it are made, and so is arithmetic. A copy to pinned memory that the host does not wait for
    arrives with the next synchronisation, as late as on a GPU it may. Its tensors are differentiated only if torch has
    an accelerator of the type of `device`.
    """

    def __init__(self, device: torch.device = CUDA) -> None:
        self.device = device
        self.calls: list[str] = []
        #: where the host waited
        self.waits: list[HostWait] = []
        #: the name of the stream that is asked for copies
        self.stream = "current stream"
        #: bytes of each pinned tensor that was made
        self.pinned: list[int] = []
        self._streams = 0
        self._pinned_at: set[int] = set()
        self._late: list[Callable[[], object]] = []

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of the tensor that claims to be on the device."""
        return DeviceTensor(tensor.detach().clone(), self.device)

    @contextmanager
    def installed(self) -> Iterator[RecordingDevice]:
        """Lets this device answer for torch's streams, synchronisations and pinned memory."""
        current = _Stream(self, self.stream)
        with ExitStack() as stack:
            # torch's parser of arguments would look for a driver
            stack.enter_context(patch("torch.cuda._lazy_init", lambda: None))
            stack.enter_context(patch.object(torch.Tensor, "copy_", _copy))
            stack.enter_context(patch("torch.Stream", self._new_stream))
            stack.enter_context(patch("torch.accelerator.current_stream", lambda device=None: current))
            for name in ("torch.cuda.synchronize", "torch.accelerator.synchronize"):
                stack.enter_context(patch(name, self._synchronise))
            stack.enter_context(_Mode(self))
            _installed.append(self)
            stack.callback(_installed.remove, self)
            yield self

    def _new_stream(self, device: object = None) -> _Stream:
        self._streams += 1
        self.calls.append(f"new stream {self._streams}")
        return _Stream(self, f"stream {self._streams}")

    def _synchronise(self, device: object = None) -> None:
        self.calls.append("synchronise")
        self._note_wait("for all work")
        self.finish_copies()

    def finish_copies(self) -> None:
        """Lets all copies arrive that were late."""
        late, self._late = self._late, []
        for copy in late:
            copy()

    def answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation gives, after it was noted if it copies, waits or pins."""
        if func is _aten.empty.memory_format and kwargs.pop("pin_memory", None):
            made: torch.Tensor = func(*args, **kwargs)
            self.pinned.append(made.nbytes)
            self._pinned_at.add(made.untyped_storage().data_ptr())
            return made
        if func is _aten._local_scalar_dense.default and isinstance(args[0], DeviceTensor):
            self.calls.append("the host waits for a number")
            self._note_wait("for a number")
            return func(args[0].numbers)
        if func in _COPIES and (copied := self._copied(func, args, kwargs)) is not None:
            return copied
        if func in _JOINS and len({type(one) for one in args[0]}) > 1:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, as a GPU does")
        on_device = [DeviceTensor in map(type, args)]
        plain_args, plain_kwargs = tree_map(lambda value: _plain(value, on_device), (args, kwargs))
        if plain_kwargs.get("device") is not None and torch.device(plain_kwargs["device"]).type == self.device.type:
            plain_kwargs["device"], on_device[0] = torch.device("cpu"), True
        if on_device[0] and _waits(func, plain_args):
            self._note_wait(f"for the result of {func}")
        results = func(*plain_args, **plain_kwargs)
        if func._schema.is_mutable:
            return kwargs.get("out", args[0]) if func._schema.returns else None
        return tree_map(self._wrapped, results) if on_device[0] else results

    def _wrapped(self, value: Any) -> Any:
        return DeviceTensor(value, self.device) if isinstance(value, torch.Tensor) else value

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a copy between host and device; None for any other copy."""
        source: torch.Tensor
        if func is _aten._to_copy.default:
            (source,) = args
            target_device = torch.device(kwargs.pop("device", None) or source.device)
            non_blocking = kwargs.pop("non_blocking", False)
            if source.device.type == target_device.type:
                return None
            if isinstance(source, DeviceTensor):
                if not non_blocking:
                    self._note("out", source, "pageable", non_blocking=False)
                    return func(source.numbers, **kwargs)
                self._note("out", source, "pinned", non_blocking=True)  # as torch makes it
                arrived = func(source.numbers, **kwargs)
                host = torch.zeros_like(arrived)
                self._late.append(lambda: host.copy_(arrived))
                return host
            self._note("in", source, self._memory_of(source), non_blocking=non_blocking)
            return DeviceTensor(func(source, **kwargs), self.device)
        target: Any
        target, source = args[:2]
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if isinstance(target, DeviceTensor) == isinstance(source, DeviceTensor):
            return None
        if isinstance(source, DeviceTensor):
            memory = self._memory_of(target)
            self._note("out", source, memory, non_blocking=non_blocking)
            if non_blocking and memory == "pinned":
                numbers = source.numbers
                self._late.append(lambda: target.copy_(numbers))
            else:
                target.copy_(source.numbers)
            return target
        self._note("in", source, self._memory_of(source), non_blocking=non_blocking)
        target.numbers.copy_(source)
        return target

    def _memory_of(self, host: torch.Tensor) -> str:
        return "pinned" if host.untyped_storage().data_ptr() in self._pinned_at else "pageable"

    def _note(self, way: str, tensor: torch.Tensor, memory: str, *, non_blocking: bool) -> None:
        waits = "" if non_blocking else ", the host waits"
        if waits:
            self._note_wait(f"for a copy {way}")
        self.calls.append(f"copy {way} on {self.stream}: {tensor.nbytes} bytes, {memory}{waits}")

    def _note_wait(self, what: str) -> None:
        # from the line to here torch goes through a wrapper of its compiler
        inner = _frame_outside(sys._getframe(1), (_HERE, f"{_TORCH}/_dynamo/", f"{_TORCH}/_compile.py"))
        outer = _frame_outside(inner, (_TORCH,))
        line, caller = (f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in (inner, outer))
        self.waits.append(HostWait(what, line, caller))


_installed: list[RecordingDevice] = []


def installed_device() -> RecordingDevice:
    """The device that was installed last.

    Raises: RuntimeError if there is none.
    """
    if not _installed:
        raise RuntimeError("a RecordingDevice answers only inside of its installed()")
    return _installed[-1]


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.answer(func, args, dict(kwargs or {}))


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copies as the method of a tensor does, which would look for a driver."""
    copied: torch.Tensor = _aten.copy_.default(target, source, non_blocking)
    return copied


def _frame_outside(frame: FrameType, files: tuple[str, ...]) -> FrameType:
    """The innermost frame whose file begins with none of these, from a frame on."""
    while frame.f_code.co_filename.startswith(files) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _waits(func: Any, args: Any) -> bool:
    """Whether the host needs numbers of the device to go on after an operation."""
    packet = func.overloadpacket
    if packet in _BY_INDEX:
        return any(isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in args[1])
    return packet in _WAITING or func is _aten.repeat_interleave.Tensor


def _plain(value: Any, on_device: list[bool]) -> Any:
    if not isinstance(value, DeviceTensor):
        return value
    on_device[0] = True
    return value.numbers
