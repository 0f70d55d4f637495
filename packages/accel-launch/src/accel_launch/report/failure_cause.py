"""What a process that failed has left of its failure: the files of its exception hook and of its fault handler."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: lines of a traceback that are shown
LONGEST = 30
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """An exception or a fault: what it is, the user's own line, the traceback; `lost_peer` if it blames another rank.

    `beside` says where it was if it did not end the process itself: in a thread, or in a process of its own.
    """

    what: str
    site: str
    traceback: str
    lost_peer: bool = False
    beside: str = ""

    @property
    def shown(self) -> str:
        """The traceback, without the middle of a long one."""
        lines = self.traceback.splitlines()
        if len(lines) > LONGEST:
            lines = [*lines[:5], f"  ... {len(lines) - LONGEST} lines ...", *lines[5 - LONGEST :]]
        return "\n".join(lines)


def read_failure(folder: Path, rank: int, pid: int) -> FailureCause | None:
    """The exception of a rank, or the newest of a process that it has started; None if it left none."""
    files = sorted(folder.glob(f"failure-{rank}-*.json"), key=lambda file: file.stat().st_mtime)
    own = folder / f"failure-{rank}-{pid}.json"
    for file in [own] if own in files else files[::-1]:
        with suppress(OSError, ValueError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            beside = f"in thread {found['thread']}: " if found["thread"] else ""
            beside = beside if found["pid"] == pid else f"in process {found['pid']} of it: {beside}"
            return FailureCause(found["what"], found["site"], found["traceback"], found["lost_peer"], beside)
    return None


def read_fault(folder: Path, rank: int, pid: int) -> FailureCause | None:
    """The fault of native code in a rank, with the Python line where it was; None if its handler noted none."""
    with suppress(OSError):
        text = (folder / f"fault-{rank}-{pid}").read_text(encoding="utf-8", errors="replace").strip()
        if text:
            # of several threads the current one had the fault; its innermost frame comes first
            current = text[text.find("Current thread") :].split("\n\n")[0]
            frames = [(m["file"], m["line"], m["function"]) for m in _FRAME.finditer(current)]
            own = [one for one in frames if "/lib/python" not in one[0] and "site-packages" not in one[0]]
            site = "{}:{} in {}".format(*own[0]) if own else ""
            return FailureCause(text.splitlines()[0], site, f"{text.splitlines()[0]}\n{current}")
    return None
