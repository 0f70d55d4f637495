"""Find out who is silent, by the time in which this process itself has looked."""

from __future__ import annotations

from typing import final

#: seconds between two signs of life of a launcher; and for which it may be stopped without being given up
BEAT_S, SILENCE_S = 2.0, 5.0
#: seconds between two looks at most; after a longer time this process did not run, and may judge nobody for that
LOOK_S, STALL_S = 0.5, 1.0
SILENT = f"nothing was heard of it for {SILENCE_S:g} s"


@final
class Silence:
    """A record of how long others have been silent. A time in which this process was stopped counts as one look.

    Args:
        now_s: Time of the first look, in seconds.
    """

    def __init__(self, now_s: float) -> None:
        self._looked_s, self._clock_s = now_s, 0.0
        self._heard: dict[object, float] = {}
        self._beat_s = self._woke_s = float("-inf")

    def look(self, now_s: float) -> bool:
        """Return True if this process was stopped since the last look.

        What it has not read then is to be read first. The other methods judge by the time of the newest look.
        """
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        self._clock_s += min(passed_s, STALL_S)
        if passed_s > SILENCE_S:
            self._woke_s = self._clock_s
        return passed_s > STALL_S

    def hear(self, name: object) -> None:
        """Note a sign of life."""
        self._heard[name] = self._clock_s

    def forget(self, name: object) -> None:
        """Remove it from those that are expected to give signs of life."""
        self._heard.pop(name, None)

    def silent(self) -> list[object]:
        """Return those of which nothing was heard for too long. A stop may begin `BEAT_S` after the last sign."""
        until_s = self._clock_s - SILENCE_S - BEAT_S
        return [name for name, heard_s in self._heard.items() if heard_s < until_s]

    def beat(self) -> bool:
        """Return True if it is time to give a sign of life."""
        due = self._clock_s - self._beat_s >= BEAT_S
        if due:
            self._beat_s = self._clock_s
        return due

    @property
    def woke(self) -> bool:
        """True if this process has just been stopped for so long that others have given it up."""
        return self._clock_s - self._woke_s < SILENCE_S
