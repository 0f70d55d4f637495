"""Runs the contestants of a row in turn, A B C A B C, and keeps what each repetition took."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from time import perf_counter, process_time

from benchmarks.row import Lineup, Row
from benchmarks.team import Team

#: The first contestant once more: how far its ratio is from 1 is what the machine cannot tell apart.
CONTROL = "raw again"
QUICK_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds for about `seconds` each row, or three whatever they take."""

    seconds: float = 8.0
    quick: bool = False

    def rounds(self, row: Row, round_s: float) -> int:
        """How many rounds to run, when one takes `round_s`."""
        if self.quick:
            return min(QUICK_ROUNDS, row.most)
        return min(max(int(self.seconds / max(round_s, 1e-9)), row.least), row.most)


@dataclass(frozen=True, slots=True)
class Samples:
    """What each contestant's repetitions took, round by round, and how much of the time the CPU worked for it."""

    took: dict[str, list[float]]
    cpu: float


def measure(row: Row, lineup: Lineup, team: Team, effort: Effort) -> Samples:
    """The samples of a row.

    Collective: every rank of the team must call, with the same contestants.
    """
    contestants = {**lineup.contestants, CONTROL: lineup.contestants[lineup.base]}
    took: dict[str, list[float]] = {name: [] for name in contestants}

    def one_round() -> dict[str, float]:
        found = {}
        for name, repeat in contestants.items():
            # Nobody pays for what another left behind. The collector itself stays on, and all that is loaded stays in
            # its sight, as in anybody's program: a loader that holds many samples at a time makes it work.
            gc.collect()
            team.barrier()
            found[name] = repeat()
        return found

    began = perf_counter()
    for _ in range(row.warm_up):
        one_round()
    spent = (perf_counter() - began) / row.warm_up if row.warm_up else 0.0
    rounds = team.agree(effort.rounds(row, spent))
    began, worked = perf_counter(), process_time()
    for _ in range(rounds):
        for name, value in one_round().items():
            took[name].append(value)
    wall = perf_counter() - began
    return Samples(took, cpu=(process_time() - worked) / wall)
