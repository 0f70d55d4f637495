"""What a row of the table is: contestants that do one thing, the first of them the one to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

#: Does the thing once; returns what it took, in the unit of its row.
Repetition = Callable[[], float]


class Unit(Enum):
    """What a repetition returns."""

    SECONDS = "s"
    BYTES = "B"


class Skipped(Exception):
    """A contestant cannot take part; the text says why."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """The contestants of one row, ready to run, and who is absent for which reason."""

    contestants: dict[str, Repetition]
    absent: dict[str, str] = field(default_factory=dict)
    #: what the row has to say once it is measured
    remark: Callable[[], str] = str

    @classmethod
    def of(cls, makers: dict[str, Callable[[], Repetition]], *, remark: Callable[[], str] = str) -> Lineup:
        """Makes each contestant; one that raises `Skipped` is absent.

        Raises: Skipped where the first is, because then there is nothing to compare with.
        """
        contestants: dict[str, Repetition] = {}
        absent: dict[str, str] = {}
        for name, make in makers.items():
            try:
                contestants[name] = make()
            except Skipped as why:
                if not contestants:
                    raise
                absent[name] = str(why)
        return cls(contestants, absent, remark)

    @property
    def base(self) -> str:
        """The contestant that the others are compared with."""
        return next(iter(self.contestants))


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to measure; it travels to its processes by pickle, so `build` is a function of a module, or a partial.

    Each of `world` processes calls `build`; rank 0 measures. `least` and `most` bound the rounds; `warm_up` counts
    those that are run first and forgotten. The target is for the ratio to the contestant `against`: the first, where
    none is named.
    """

    name: str
    build: Callable[[], Lineup]
    target: float
    world: int = 1
    unit: Unit = Unit.SECONDS
    least: int = 15
    most: int = 1000
    warm_up: int = 2
    against: str = ""

    def __post_init__(self) -> None:
        if self.world < 1 or not 1 <= self.least <= self.most or self.warm_up < 0 or self.target <= 0:
            raise ValueError(
                f"row {self.name!r}: world={self.world}, least={self.least}, most={self.most}, warm_up={self.warm_up},"
                f" target={self.target}; expected world >= 1, 1 <= least <= most, warm_up >= 0, target > 0"
            )
