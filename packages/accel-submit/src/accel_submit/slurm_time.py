"""Reads a time limit of SLURM, and says how long before its end a job is told of it.

Source: https://slurm.schedmd.com/sbatch.html, options --time and --signal.
"""

import re

EXPECTED = (
    "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds"
    " or UNLIMITED"
)
_FORMS = (
    re.compile(r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?", re.ASCII),
    re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)", re.ASCII),
    re.compile(r"(?P<m>\d+)(:(?P<s>\d+))?", re.ASCII),
)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds_of(limit: str) -> int | None:
    """The length of a time limit in seconds; 0 if there is none, None for a text that SLURM would not take."""
    if limit.upper() in ("UNLIMITED", "INFINITE"):
        return 0
    matched = next((found for form in _FORMS if (found := form.fullmatch(limit))), None)
    return sum(int(n) * _SECONDS[unit] for unit, n in matched.groupdict("0").items()) if matched else None


def notice_within(limit: str | None, notice_s: int) -> int:
    """How many seconds before its end a job is told of it: `notice_s`, or half of a limit shorter than twice that."""
    length_s = seconds_of(limit) if limit is not None else None
    return min(notice_s, max(1, length_s // 2)) if length_s else notice_s
