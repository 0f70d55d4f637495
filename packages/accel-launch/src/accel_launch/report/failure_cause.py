"""Read the files that a failed process has left: those of its exception hook and of its fault handler."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: lines of a traceback that are shown: of a long one the first and the last
FIRST_LINES, LAST_LINES = 5, 25
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FailureCause:
    """An exception or a fault.

    Args:
        what: Its text.
        site: The user's own line.
        traceback: The traceback.
        lost_peer: True if it blames another rank.
        beside: Its thread or its process, if it did not end the rank itself.
        exchange: The exchange that the process was in, if any.
    """

    what: str
    site: str
    traceback: str
    lost_peer: bool = False
    beside: str = ""
    exchange: str = ""

    @property
    def shown(self) -> str:
        """The traceback, without the middle of a long one."""
        lines = self.traceback.splitlines()
        left_out = len(lines) - FIRST_LINES - LAST_LINES
        if left_out > 0:
            lines[FIRST_LINES:-LAST_LINES] = [f"  ... {left_out} lines ..."]
        return "\n".join(lines)


def read_failure(folder: Path, rank: int, pid: int) -> FailureCause | None:
    """Return the exception of a rank, or the newest of a process that it has started, or None.

    Args:
        folder: Folder of the job.
        rank: Rank of the process.
        pid: Its process id.
    """
    files = sorted(folder.glob(f"failure-{rank}-*.json"), key=lambda file: file.stat().st_mtime)
    own = folder / f"failure-{rank}-{pid}.json"
    for file in [own] if own in files else files[::-1]:
        with suppress(OSError, ValueError, KeyError):
            left = json.loads(file.read_text(encoding="utf-8"))
            beside = f"in thread {left['thread']}: " if left["thread"] else ""
            beside = beside if left["pid"] == pid else f"in process {left['pid']} of it: {beside}"
            return FailureCause(
                left["what"], left["site"], left["traceback"], left["lost_peer"], beside, left["exchange"]
            )
    return None


def read_fault(folder: Path, rank: int, pid: int) -> FailureCause | None:
    """Return the fault of native code in a rank, with its Python line, or None.

    Args:
        folder: Folder of the job.
        rank: Rank of the process.
        pid: Its process id.
    """
    with suppress(OSError):
        text = (folder / f"fault-{rank}-{pid}").read_text(encoding="utf-8", errors="replace").strip()
        if text:
            # of several threads the current one had the fault; its innermost frame comes first
            current = text[text.find("Current thread") :].split("\n\n")[0]
            frames = [frame for frame in _FRAME.finditer(current) if not _is_installed(frame["file"])]
            site = "{file}:{line} in {function}".format(**frames[0].groupdict()) if frames else ""
            what = text.splitlines()[0]
            return FailureCause(what, site, f"{what}\n{current}")
    return None


def _is_installed(file: str) -> bool:
    return "/lib/python" in file or "site-packages" in file
