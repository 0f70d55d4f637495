"""The trackers that a script asks for by `log_with`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from accel_track import TRACKERS, GeneralTracker

LogWith = str | GeneralTracker
ALL = "all"


def choose(
    log_with: LogWith | Iterable[LogWith] | None,
    logging_dir: str | Path | None,
    warn: Callable[[str], None] | None = None,
) -> list[LogWith]:
    """Return the trackers that were asked for, without "all" and doubles.

    Args:
        log_with: Names, and trackers of the script's own.
        logging_dir: The folder of the logs, which some trackers need.
        warn: Is told of trackers whose clients are not installed, which are left out then.

    Raises:
        ValueError: An entry is neither a tracker nor the name of one, two have one name, or a tracker lacks the folder
            that it needs. The message lists all.
        ImportError: It lists trackers whose clients are not installed, without `warn`.
    """
    asked = [] if log_with is None else [log_with] if isinstance(log_with, str | GeneralTracker) else list(log_with)
    problems: list[str] = []
    absent: list[str] = []
    chosen: list[LogWith] = []
    for wanted in asked:
        if isinstance(wanted, GeneralTracker):
            chosen.append(wanted)
        elif not isinstance(wanted, str):
            hint = f"; call it: {wanted.__name__}(...)" if isinstance(wanted, type) else ""
            problems.append(f"log_with={wanted!r}: expected a name, or a tracker (accel.tracking.GeneralTracker){hint}")
        elif wanted == ALL:
            chosen += [name for name in TRACKERS.names() if TRACKERS.load(name).missing() is None]
        elif wanted not in TRACKERS.names():
            problems.append(f"log_with={str(wanted)!r}: expected {', '.join((ALL, *TRACKERS.names()))}, or a tracker")
        else:
            chosen.append(str(wanted))
    chosen = list(dict.fromkeys(chosen))
    for tracker in [TRACKERS.load(name) for name in chosen if isinstance(name, str)]:
        if (missing := tracker.missing()) is not None:
            absent.append(f"log_with={tracker.name!r} needs a package that is not installed: {missing}")
            if warn is not None:
                warn(f"{absent.pop()}; nothing is recorded by it")
                chosen.remove(tracker.name)
                continue
        if tracker.requires_logging_directory and not (logging_dir or tracker.default_logging_directory):
            problems.append(
                f"log_with: Logging with `{tracker.name}` requires a `logging_dir`: pass"
                " Accelerator(project_dir=...), or ProjectConfiguration(logging_dir=...)"
            )
    names = [tracker if isinstance(tracker, str) else tracker.name for tracker in chosen]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"log_with has two trackers of the name {', '.join(doubled)}; give each a name of its own")
    if problems:
        raise ValueError("Accelerator(...): " + "\n  ".join([*problems, *absent]))
    if absent:
        raise ImportError("Accelerator(...): " + "\n  ".join(absent))
    return chosen
