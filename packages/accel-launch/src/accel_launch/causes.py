"""What a process that failed has said of it: the last traceback in what it printed."""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile

from accel_state.journal import OURS

#: the first line of a traceback: what stands before it, which torch, elastic agents and groups of exceptions put before
#: each of its lines, is no part of it
_BEGIN = re.compile(
    r"^(?P<mark>(?:\[[^\]]*\]:? ?)*[ |+]*)(?:Original |Exception Group )?Traceback \(most recent call last\):$"
)
#: what Python says before the traceback of an exception that ends no process
_BESIDES = ("Exception ignored ", "Exception in thread ", "Error in atexit")
#: what Python says where it cannot print a traceback
_BARE = re.compile(r"^object repr     : (.+)$")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)(?:,? in (?P<where>.+))?$')
#: what is said instead of an exception by Python itself, or by its handler of faults
_FAULT = re.compile(r"^(Fatal Python error: .+|Segmentation fault.*|terminate called .+)$", re.MULTILINE)
#: what gloo, NCCL and accel say of a connection whose other end is gone
_PEER = re.compile(
    r"PeerLost|PeerFailed|Connection (closed|reset) by|Connection refused|Broken pipe|remote process exit"
    r"|Connection was likely closed|got 0 bytes"
)
#: what they raise it as: an error of a connection that the script has made itself is its own
_OF_THEM = re.compile(r"^(?:\w+\.)*(?:RuntimeError|Dist\w*Error|PeerLost|PeerFailed)\b")
_FATAL = "Fatal Python error"
#: lines of a traceback that are shown again
LONGEST = 30


@dataclass(frozen=True, slots=True)
class Cause:
    """An exception that ended a process: its type and message, the user's own innermost line, and the traceback."""

    what: str
    where: str | None
    traceback: str

    @property
    def shown(self) -> str:
        """The traceback, without the middle of a long one."""
        lines = self.traceback.splitlines()
        if len(lines) > LONGEST:
            lines = [*lines[:5], f"  ... {len(lines) - LONGEST} lines ...", *lines[5 - LONGEST :]]
        return "\n".join(lines)

    @property
    def of_a_peer(self) -> bool:
        """Whether it says no more than that another process is gone."""
        return _OF_THEM.match(self.what) is not None and _PEER.search(self.what) is not None


def names_a_peer(text: str) -> bool:
    """Whether the last lines of a text, before Python lists its threads, tell of a process that is gone."""
    said = text[: text.rfind(_FATAL)] if _FATAL in text else text
    return _PEER.search("\n".join(said.splitlines()[-LONGEST:])) is not None


def last_cause(text: str) -> Cause | None:
    """The last exception that a text tells of; None where there is none."""
    lines = text.replace("\r\n", "\n").splitlines()
    begins = [(number, match) for number, line in enumerate(lines) if (match := _BEGIN.match(line.rstrip()))]
    if not begins:
        return _syntax_error(lines) or last_fault(text)
    ends = [(at, found) for at, found in begins if not _before(lines, at, found["mark"]).startswith(_BESIDES)] or begins
    start, match = ends[-1]
    cause = _traceback(lines, start, match)
    if cause is None or cause.where is not None or len(ends) < 2:
        return cause
    # one that Python's own code meets at the exit, such as a loader that finds its worker gone once more
    before = _traceback(lines, *ends[-2])
    if before is None or before.where is None or ends[-2][0] + before.traceback.count("\n") + 1 != start:
        return cause
    return Cause(cause.what, before.where, f"{before.traceback}\n{cause.traceback}")


def _before(lines: list[str], at: int, mark: str) -> str:
    return lines[at - 1][len(mark) :] if at else ""


def _traceback(lines: list[str], start: int, match: re.Match[str]) -> Cause | None:
    """The cause that the traceback there tells of; None where its end is missing."""
    mark = match["mark"].replace("+", "|").rstrip()
    block = [line[len(match["mark"]) :] for line in takewhile(lambda line: line.startswith(mark), lines[start + 1 :])]
    block.insert(0, lines[start][len(match["mark"]) :])
    bare = next((found for line in block[1:6] if (found := _BARE.match(line))), None)
    if bare is not None:
        return Cause(bare[1], None, "\n".join(block[:7]))
    end = next((at for at, line in enumerate(block[1:], 1) if line and not line.startswith(" ")), None)
    if end is None:
        return None
    stop = end + 1
    while stop < len(block) and (block[stop].startswith((" ", "\t")) or not block[stop].strip()):
        stop += 1
    block = block[:stop]
    while block and not block[-1].strip():
        block.pop()
    return Cause("\n".join(block[end:]).strip(), _users_frame(block), "\n".join(block))


def _syntax_error(lines: list[str]) -> Cause | None:
    """One in the script itself has no traceback."""
    for at in range(len(lines) - 1, -1, -1):
        if re.match(r"^(SyntaxError|IndentationError|TabError): ", lines[at]):
            start = max((k for k in range(at) if _FRAME.match(lines[k])), default=None)
            if start is not None:
                block = lines[start : at + 1]
                return Cause(lines[at], _users_frame(block), "\n".join(block))
    return None


def last_fault(text: str) -> Cause | None:
    """The last fault of native code that a text tells of, with the Python line where its handler names it."""
    found = list(_FAULT.finditer(text.replace("\r\n", "\n")))
    if not found:
        return None
    # with several threads, that of the fault is the current one; its innermost frame comes first
    after = found[-1].string[found[-1].end() :]
    block = after[after.find("Current thread") :].strip().split("\n\n")[0].splitlines()
    shown = [found[-1][0], *block] if block and block[0].startswith("Current thread") else [found[-1][0]]
    return Cause(found[-1][0], _users_frame(shown[:1] + shown[:0:-1]), "\n".join(shown))


def _users_frame(block: list[str]) -> str | None:
    """The innermost line that is not of a library, in words."""
    libraries, found = _libraries(), None
    for number, line in enumerate(block):
        match = _FRAME.match(line)
        if match is None or match["file"].startswith(("<", *libraries)) or "site-packages" in match["file"]:
            continue
        after = block[number + 1] if number + 1 < len(block) else ""
        source = after.strip() if after.startswith("    ") else ""
        where = f" in {match['where']}" if match["where"] else ""
        found = f"{match['file']}:{match['line']}{where}{f': {source}' if source else ''}"
    return found


def _libraries() -> tuple[str, ...]:
    """Where the files of Python, of what is installed and of accel are; accel's may be in a source folder."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    for name in OURS:
        spec = find_spec(name)
        folders.update(spec.submodule_search_locations or () if spec is not None else ())
    return tuple(f"{folder}{os.sep}" for folder in folders)
