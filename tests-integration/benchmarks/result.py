"""What a row came to: medians, spreads, and whether the target is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

from benchmarks.measure import Samples
from benchmarks.row import Lineup, Row, Unit

#: The contestant that a target is for.
OURS = "accel"


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of many ratios, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The median and quartiles of at least one value."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high)


@dataclass(frozen=True, slots=True)
class Result:
    """A row of the table."""

    name: str
    target: float
    unit: Unit = Unit.SECONDS
    #: whom the table compares with
    base: str = ""
    base_median: float | None = None
    ratios: dict[str, Spread] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    rounds: int = 0
    cpu: float = 0.0
    #: why there is nothing to report
    failure: str | None = None
    skipped: str | None = None
    #: whom the target is for, where that is not the base, and what ours takes of it
    against: str = ""
    to_against: Spread | None = None

    @classmethod
    def of(cls, row: Row, lineup: Lineup, samples: Samples) -> Result:
        """What the samples of a row say.

        Raises: ValueError where the target is against somebody who is no contestant of the row.
        """
        took, against = samples.took, "" if row.against == lineup.base else row.against
        base = took[lineup.base]
        ratios = {name: _ratio(one, base) for name, one in took.items() if name != lineup.base}
        skipped, to_against = None, None
        if against in lineup.absent:
            skipped = f"the target is against {against}, which is absent"
        elif against in took and OURS in took:
            to_against = _ratio(took[OURS], took[against])
        elif against and against not in took:
            raise ValueError(f"row {row.name!r}: against={against!r}; expected one of {', '.join(lineup.contestants)}")
        return cls(
            row.name,
            row.target,
            row.unit,
            lineup.base,
            median(base),
            ratios,
            dict(lineup.absent),
            lineup.remark(),
            len(base),
            samples.cpu,
            skipped=skipped,
            against=against,
            to_against=to_against,
        )

    @property
    def judged(self) -> Spread | None:
        """The ratio that the target is for; None where it could not be measured."""
        return self.to_against if self.against else self.ratios.get(OURS)

    @property
    def verdict(self) -> str:
        """`pass` or `miss`, with a `~` where the target lies within the spread; or why there is none."""
        if self.failure is not None:
            return "failed"
        ours = self.judged
        if ours is None:
            return "skipped"
        word = "pass" if ours.median <= self.target else "miss"
        return f"{word} ~" if ours.low < self.target < ours.high else word

    def facts(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {**asdict(self), "unit": self.unit.value, "verdict": self.verdict}


def _ratio(took: Sequence[float], others: Sequence[float]) -> Spread:
    return Spread.of([one / other for one, other in zip(took, others, strict=True)])
