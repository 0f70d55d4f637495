"""What happens when a rank dies, drawn from a job whose rank 1 is killed: a picture of docs/guides/launching.md."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pictures.drawing import COLORS, GRAY, Drawing

SCRIPT = Path(__file__).parent / "dying_script.py"
RED = "#fb9a99"
#: what the launcher says of the death, and not of this machine
SAID = re.compile(
    r"rank 1 of 2(?= \(pid)|was killed by \w+|ended because of it: rank 0|starts again (?:in \d+ s|at once)"
)


@dataclass(frozen=True)
class Death:
    """What each rank notes, in order, what the launcher says, and the exit code of the job."""

    ranks: tuple[tuple[str, ...], ...]
    said: tuple[str, ...]
    code: int


def death(python: str = sys.executable) -> Death:
    """Runs the job by a launcher that `python` runs: Python, or `forking_python`."""
    command = [python, "-m", "accel", "launch", "--cpu", "--num_processes", "2", "--max_restarts", "1"]
    with TemporaryDirectory() as folder:
        job = subprocess.run([*command, str(SCRIPT), folder], capture_output=True, text=True, timeout=300)
        ranks = [(Path(folder) / f"rank{rank}").read_text().splitlines() for rank in range(2)]
    return Death(tuple(map(tuple, ranks)), tuple(SAID.findall(job.stderr)), job.returncode)


def timeline(seen: Death) -> str:
    """A row for each rank, a column for each thing that it does, and below them what the launcher does."""
    left, wide, high = 86, 41, 26
    picture = Drawing(left + 15 * (wide + 3), 178)
    lives = [[list(part) for part in parted(rank)] for rank in seen.ranks]
    end = left + len(lives[1][0]) * (wide + 3)
    again = end + 2 * (wide + 3)
    for rank, (first, second) in enumerate(lives):
        top = 12 + rank * 36
        picture.words(left - 8, top + 17, f"rank {rank}", anchor="end")
        for begin, events in ((left, first), (again, second)):
            for place, event in enumerate(events):
                color = COLORS[2] if event.startswith(("saves", "loads")) else COLORS[rank]
                picture.box(begin + place * (wide + 3), top, wide, high, color, short(event))
    picture.box(end, 12, wide, high, GRAY, "ended")
    picture.box(end, 48, wide, high, RED, "killed")
    middle = end + wide / 2
    picture.words(left - 8, 128, "accel launch", anchor="end")
    picture.arrow(middle, 76, middle, 110)
    picture.arrow(again + wide / 2, 110, again + wide / 2, 76)
    picture.line(left, 112, left + 15 * (wide + 3) - 10, 112)
    killed = " ".join(seen.said[:2])
    picture.words(middle + 8, 130, killed, anchor="end")
    picture.words(middle + 8, 146, seen.said[2], anchor="end")
    picture.words(again, 130, f"{seen.said[3]}, both ranks from the checkpoint")
    picture.words(again, 146, f"ends with exit code {seen.code}")
    picture.words(left, 170, "from left to right: what each rank does, in order; not to scale", size=10)
    return str(picture)


def short(event: str) -> str:
    """The event in a word that fits into its box."""
    return event.replace(" step", "").replace("saves", "save").replace("loads", "load")


def parted(events: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a rank does before it is started again, and after."""
    at = next(place for place, event in enumerate(events) if event.startswith("loads"))
    return events[:at], events[at:]
