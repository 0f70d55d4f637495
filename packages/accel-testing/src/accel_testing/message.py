"""Pack and unpack the messages between a test and its workers."""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from accel_testing.failure import NotSendable

STOP = b""


@dataclass(frozen=True, slots=True)
class Call:
    """A call for a worker.

    Args:
        sources: Source files by the names of the modules that the pickle names.
        body: Pickled pair of the function and its arguments.
    """

    sources: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """A pickled result."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """An exception of a worker.

    Args:
        text: Its traceback.
        body: The pickled exception, or None if it does not pickle.
    """

    text: str
    body: bytes | None


class _Packer(pickle.Pickler):
    """A pickler that writes down the source file of every module whose classes or functions it names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.sources: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) and obj.__module__ in sys.modules:
            source = vars(sys.modules[obj.__module__]).get("__file__")
            if source is not None:
                self.sources[obj.__module__] = source
        return NotImplemented


def name_of(function: Callable[..., Any]) -> str:
    """Return the dotted name of a function, or the repr of another callable."""
    return f"{function.__module__}.{function.__qualname__}" if isinstance(function, FunctionType) else repr(function)


def pack_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return the bytes of a Call.

    Raises:
        NotSendable: The function or an argument does not pickle.
    """
    file = io.BytesIO()
    packer = _Packer(file)
    try:
        packer.dump((function, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotSendable(
            f"ProcessPool.run was asked for {name_of(function)} with {len(args)} arguments, and they do not pickle:\n"
            f"  {type(error).__name__}: {error}\n"
            "the function must stand at the top level of a module or of a test file, and the arguments must pickle"
        ) from error
    return pickle.dumps(Call(packer.sources, file.getvalue()))


def pack_done(result: object) -> bytes:
    """Return the bytes of a Done.

    Raises:
        TypeError: The result does not pickle.
    """
    try:
        return pickle.dumps(Done(pickle.dumps(result)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the result {result!r} does not pickle ({error}); return tensors, numbers or text") from error


def pack_failed(error: BaseException) -> bytes:
    """Return the bytes of a Failed, without the exception itself if it does not survive a round trip of pickle."""
    text = "".join(traceback.format_exception(error))
    body: bytes | None
    try:
        body = pickle.dumps(error)
        pickle.loads(body)
    except Exception:  # noqa: BLE001 - pickle runs the exception's own code, which may raise anything
        body = None
    return pickle.dumps(Failed(text, body))


def unpack_error(failed: Failed) -> BaseException:
    """Return the worker's exception, or a RuntimeError with the last line of its traceback if it does not pickle."""
    if failed.body is not None:
        try:
            error = pickle.loads(failed.body)
        except Exception:  # noqa: BLE001 - as above, in the other process
            error = None
        if isinstance(error, BaseException):
            return error
    return RuntimeError(f"{failed.text.strip().splitlines()[-1]} (this exception does not pickle)")
