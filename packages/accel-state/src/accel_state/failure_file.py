"""Tell the launcher why this process fails, in a file that it reads once the process has ended."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, final

from accel_state.environ import FLIGHT_RECORDER

#: torch's own name for the file in which its agent finds the error of a process
TORCH_FILE = "TORCHELASTIC_ERROR_FILE"
#: what torch puts before the traceback of a loader's worker, in the message of an exception
_OF_WORKER = "Original Traceback (most recent call last):\n"
#: what gloo and NCCL say of a connection whose other end is gone, and the errors that they raise it as
_PEER_WORDS = (
    "Connection closed by|Connection reset by|Connection refused|Broken pipe|remote process exit"
    "|Connection was likely closed|got 0 bytes|Watchdog caught collective|PeerLost|PeerFailed"
)
_PEER_TYPES = ("RuntimeError", "PeerLost", "PeerFailed", "DistBackendError", "DistNetworkError", "DistStoreError")
#: of a text that is told: the most characters of a line, and the most lines from its beginning and from its end
MOST_OF_LINE, MOST_LINES = 1000, 100
_installed: list[FailureFile] = []


def install(environ: Mapping[str, str]) -> None:
    """Let the exception that ends this process be told in a file, if a launcher or torch's agent watches it."""
    folder, error_file = environ.get(FLIGHT_RECORDER), environ.get(TORCH_FILE)
    if _installed or not (folder or error_file):
        return
    pid, rank = os.getpid(), environ.get("RANK", "0")
    # a process that a rank has started has the rank's environment
    path = Path(folder) / f"failure-{rank}-{pid}.json" if folder else None
    _installed.append(FailureFile(path, Path(error_file) if error_file else None, rank))
    if path is not None and "PYTHONFAULTHANDLER" not in environ:
        import faulthandler

        with suppress(OSError):
            if not faulthandler.is_enabled():
                # a number, and no object: whatever has faulthandler write elsewhere would drop it unclosed
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                faulthandler.enable(os.open(path.with_name(f"fault-{rank}-{pid}"), flags, 0o666))


@final
class FailureFile:
    """The hooks that write exceptions which no code catches into a file, before the former hooks run.

    Args:
        path: File for the launcher; None without one.
        error_file: File for torch's agent; None without one.
        rank: Rank of this process.
    """

    def __init__(self, path: Path | None, error_file: Path | None, rank: str) -> None:
        self._path, self._error_file, self._rank, self._pid = path, error_file, rank, os.getpid()
        self._hook, self._thread_hook = sys.excepthook, threading.excepthook
        sys.excepthook, threading.excepthook = self._raised, self._raised_in_thread
        self._told = False
        atexit.register(self._at_exit)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lost_peer = self._write(error)
        if lost_peer and self._path is not None:
            said = printable(describe(error)["what"].partition("\n")[0].partition(": ")[2])
            print(f"accel: rank {self._rank} lost another process: {kind.__name__}: {said}", file=sys.stderr)
        else:
            self._hook(kind, error, trace)

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if error is not None and not self._told:
            self._write(error)  # the script has a hook of its own that calls no other

    def _raised_in_thread(self, about: threading.ExceptHookArgs) -> None:
        if about.exc_value is not None:
            self._write(about.exc_value, thread=about.thread.name if about.thread is not None else "?")
        self._thread_hook(about)

    def _write(self, error: BaseException, thread: str | None = None) -> bool:
        """Return whether the exception says only that another process is gone, and hide it by no error in here."""
        if os.getpid() != self._pid:
            return False  # a child by fork
        self._told = self._told or thread is None
        try:
            exchange = _exchange(self._path.with_name(self._rank), error) if self._path is not None else ""
            found = describe(error)
            if self._path is not None:
                notes = {**found, "exchange": exchange, "rank": self._rank, "pid": self._pid, "thread": thread}
                _replace(self._path, json.dumps(notes))
            if self._error_file is not None and thread is None and not self._error_file.exists():
                extra = {"py_callstack": found["traceback"], "timestamp": str(int(time.time()))}
                _replace(self._error_file, json.dumps({"message": {"message": found["what"], "extraInfo": extra}}))
            return bool(found["lost_peer"])
        except Exception:  # noqa: BLE001 (the exception that is told of may have a method that fails)
            return False


def describe(error: BaseException) -> dict[str, Any]:
    """Return an exception with its traceback, the user's own line in it, and whether it is only the loss of a peer.

    Of a group the first parts are told, with the user's line in the first of them. Long texts are shortened.
    """
    parts = [_describe_single(part) for part in islice(_parts(error), MOST_LINES)]
    what, site, lost = parts[0]
    if isinstance(error, BaseExceptionGroup):
        told = [f"{part.partition(chr(10))[0]}{f', at {place}' if place else ''}" for part, place, _ in parts]
        what = "\n".join([_text(error), *told])
        lost = all(one for _, _, one in parts)
    text = "".join(traceback.format_exception(error)).rstrip()
    return {"what": shorten(what), "site": site[:MOST_OF_LINE], "traceback": shorten(text), "lost_peer": lost}


def _parts(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group and of the groups in it, or any other exception itself."""
    if isinstance(error, BaseExceptionGroup):
        yield from chain.from_iterable(map(_parts, error.exceptions))
    else:
        yield error


def _text(error: BaseException) -> str:
    # asks for no text of the exception itself: its __str__ may raise, and traceback has words for this
    lines = list(traceback.format_exception_only(error))
    return (lines[-1] if isinstance(error, SyntaxError) else "".join(lines)).strip()


def _describe_single(error: BaseException) -> tuple[str, str, bool]:
    """Return the text of an exception that is no group, the script's line, and whether it is the loss of a peer."""
    import re

    what = _text(error)
    if isinstance(error, SyntaxError):
        site = _site(error.filename or "?", error.lineno or 0, "", (error.text or "").strip())
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
        site = _site(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name, frames[-1].line) if frames else ""
    if _OF_WORKER in what:
        inside = what.partition(_OF_WORKER)[2].strip()
        what = inside.rpartition("\n")[2]
        found = re.findall(r'^  File "(.+)", line (\d+), in (.+)\n    (.+)$', inside, re.MULTILINE)
        own = [one for one in found if _is_users(one[0])]
        site = _site(own[-1][0], int(own[-1][1]), own[-1][2], own[-1][3]) if own else site
    lost = type(error).__name__ in _PEER_TYPES and re.search(_PEER_WORDS, what) is not None
    return what, site, lost


def shorten(text: str, first: int = MOST_LINES, last: int = MOST_LINES) -> str:
    """Return a text with the middle of long lines, and the middle ones of many lines, left out.

    Args:
        text: The text.
        first: Lines of its beginning that stay.
        last: Lines of its end that stay.
    """
    lines = text.splitlines()
    left_out = len(lines) - first - last
    if left_out > 0:
        lines[first:-last] = [f"  ... {left_out} lines ..."]
    half = MOST_OF_LINE // 2
    for place, line in enumerate(lines):
        if len(line) > MOST_OF_LINE:
            lines[place] = f"{line[:half]} ... {len(line) - 2 * half} characters ... {line[-half:]}"
    return "\n".join(lines)


def printable(text: str, kept: str = "") -> str:
    """Return a text with escapes in the place of characters that a terminal would obey, but for those that are kept."""
    return "".join(
        letter if letter.isprintable() or letter in kept else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _exchange(records: Path, error: BaseException) -> str:
    """Return the exchange in which this process is, or out of which the exception came, or an empty text."""
    # not imported here, for the reason that `_is_users` has: without the module there was no exchange
    module = sys.modules.get("accel_comm.flight_recorder")
    if module is not None:
        module.settle()
    newest = next(iter(module.read(records)[-1:]), None) if module is not None else None
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    within = any(module.startswith(("accel_comm.transports", "accel_state.store_exchange")) for module in modules)
    return str(newest) if newest is not None and (newest.ended is None or within) else ""


def _site(file: str, line: int, function: str, source: str | None) -> str:
    return f"{file}:{line}{f' in {function}' if function else ''}{f': {source}' if source else ''}"


def _is_users(file: str) -> bool:
    """Return whether a file is no file of Python, of an installed package, or of accel."""
    import sysconfig

    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # without an import: a dataclass, which is text that is run, would have Python forget that it was interrupted
    ours = [name for name in sys.modules if "." not in name and (name == "accel" or name.startswith("accel_"))]
    for spec in [sys.modules[name].__spec__ for name in ours]:
        folders.update(spec.submodule_search_locations or () if spec is not None else ())
    return not file.startswith(("<", *(f"{folder}{os.sep}" for folder in folders))) and "site-packages" not in file


def _replace(path: Path, content: str) -> None:
    aside = path.with_name(f"{path.name}.partial")
    aside.write_text(content, encoding="utf-8")
    aside.replace(path)
