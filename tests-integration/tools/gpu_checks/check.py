"""What a check is, what it may use, and how it ends."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self, final

Fact = str | int | float | bool


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Skipped(Exception):
    """A check, or a part of it, cannot run here; the message says what is missing."""


@final
class Findings:
    """What one check has seen: facts by name, and what went wrong in its parts.

    Args:
        keep: Called after each part, so that what was seen outlives a check that is ended.
    """

    def __init__(self, keep: Callable[[Findings], None] | None = None) -> None:
        self.facts: dict[str, Fact] = {}
        self.problems: list[str] = []
        self._keep = keep

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part of the check: what it raises is noted, and the parts after it run."""
        try:
            yield
        except Skipped as why:
            self.facts.setdefault(name, f"skipped: {why}")
        except Exception as error:  # noqa: BLE001 - a part may fail in any way, and must not stop the others
            self.problems.append(f"{name}: {in_words(error)}")
            self.facts[name] = "failed"
        else:
            self.facts.setdefault(name, "ok")
        finally:
            if self._keep is not None:
                self._keep(self)


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a check runs: on the GPU, or as a rehearsal on the CPU, with small sizes."""

    rehearsal: bool

    @property
    def kind(self) -> str:
        """torch's name for the kind of device."""
        return "cpu" if self.rehearsal else "cuda"

    def size(self, on_gpu: int, rehearsed: int) -> int:
        """The size for here."""
        return rehearsed if self.rehearsal else on_gpu

    def need_cuda(self) -> None:
        """Raises: Skipped in a rehearsal."""
        if self.rehearsal:
            raise Skipped("needs CUDA, and this is a rehearsal on the CPU")


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the whole; `limit_s` seconds after its start it is ended."""

    name: str
    limit_s: int
    run: Callable[[Setup, Findings], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended, why, what it saw, and how many seconds it took."""

    name: str
    status: Status
    reason: str = ""
    facts: dict[str, Fact] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> str:
        """The outcome as one line."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The outcome that `as_json` wrote."""
        stored: dict[str, Any] = json.loads(line)
        return cls(**{**stored, "status": Status(stored["status"])})


def outcome_of(check: Check, setup: Setup, keep: Callable[[Outcome], None] | None = None) -> Outcome:
    """How the check ends, run in this process; `keep` is told after each part how it stands."""

    def so_far(findings: Findings) -> Outcome:
        failed = Status.FAILED if findings.problems else Status.OK
        return Outcome(check.name, failed, "\n".join(findings.problems), findings.facts)

    findings = Findings(None if keep is None else lambda seen: keep(so_far(seen)))
    try:
        check.run(setup, findings)
    except Skipped as why:
        return Outcome(check.name, Status.SKIPPED, str(why), findings.facts)
    except Exception as error:  # noqa: BLE001 - a check may fail in any way
        findings.problems.append(in_words(error))
    return so_far(findings)


def in_words(error: BaseException) -> str:
    """The error, and the lines that it went through."""
    trail = traceback.extract_tb(error.__traceback__)[-6:]
    lines = [f"{type(error).__name__}: {error}", *(f"  {step.filename}:{step.lineno} {step.line}" for step in trail)]
    return "\n".join(lines)
