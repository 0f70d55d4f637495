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

    @classmethod
    def of(cls, row: Row, lineup: Lineup, samples: Samples) -> Result:
        """What the samples of a row say."""
        base = samples.took[lineup.base]
        ratios = {
            name: Spread.of([one / other for one, other in zip(took, base, strict=True)])
            for name, took in samples.took.items()
            if name != lineup.base
        }
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
        )

    @property
    def verdict(self) -> str:
        """`pass` or `miss`, with a `~` where the target lies within the spread; or why there is none."""
        if self.failure is not None:
            return "failed"
        if OURS not in self.ratios:
            return "skipped"
        ours = self.ratios[OURS]
        word = "pass" if ours.median <= self.target else "miss"
        return f"{word} ~" if ours.low < self.target < ours.high else word

    def facts(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {**asdict(self), "unit": self.unit.value, "verdict": self.verdict}
