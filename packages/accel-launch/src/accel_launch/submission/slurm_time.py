"""Reads a time limit of SLURM, and says how long before its end a job can be told of it.

Source: https://slurm.schedmd.com/sbatch.html, options --time and --signal.
"""

import re

EXPECTED = (
    "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds"
    " or UNLIMITED"
)
_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_HOURS = re.compile(r"(\d+):(\d+):(\d+)", re.ASCII)
_MINUTES = re.compile(r"(\d+)(?::(\d+))?", re.ASCII)


def seconds_of(limit: str) -> int | None:
    """The length of a time limit, or 0 where there is none.

    Units: seconds. None for a text that SLURM would not take.
    """
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return 0
    if matched := _WITH_DAYS.fullmatch(limit):
        days, hours, minutes, seconds = (int(each or 0) for each in matched.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if matched := _HOURS.fullmatch(limit):
        hours, minutes, seconds = (int(each) for each in matched.groups())
        return (hours * 60 + minutes) * 60 + seconds
    if matched := _MINUTES.fullmatch(limit):
        minutes, seconds = (int(each or 0) for each in matched.groups())
        return minutes * 60 + seconds
    return None


def notice_within(limit: str | None, notice_s: int) -> int:
    """How long before its end a job is told of it: `notice_s`, or half of a limit that is shorter than twice that.

    Units: seconds.
    """
    length_s = seconds_of(limit) if limit is not None else None
    return min(notice_s, max(1, length_s // 2)) if length_s else notice_s
