"""The command `python -m gpu_checks`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from gpu_checks import report
from gpu_checks.check import Check, Outcome, Setup, Status, outcome_of
from gpu_checks.checks import CHECKS
from gpu_checks.processes import BUDGET_S, kept_beside, run_check, write_outcome

#: fails if there is no GPU
FIRST = "environment"
EXAMPLES = """examples:
  nox -s gpu_checks -- --out runs/gpu --budget 420   as many checks as seven minutes allow, the most telling first
  nox -s gpu_checks -- --only copies_ahead           one check
  nox -s gpu_checks -- --rehearse                    the same code on the CPU, small: would it run on the day?
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks, prints and writes what they saw; 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_checks",
        description="Checks accel on one GPU or more, each check in a process of its own, the most telling first.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=float,
        help=f"when all is to be over; checks without time left are named (default: {BUDGET_S:.0f}; rehearsed: none)",
    )
    parser.add_argument("--only", metavar="NAME", action="append", help="a check by its name; may be repeated")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU, small; checks that need CUDA say so")
    parser.add_argument("--list", action="store_true", help="name the checks and run nothing")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="where to write gpu_checks.json and gpu_checks.md")
    parser.add_argument("--check", help=argparse.SUPPRESS)  # the name of the check that this process runs by itself
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    setup = Setup(asked.rehearse)
    if asked.check is not None:
        return _answered(asked.check, setup, asked.answer)
    if unknown := set(asked.only or ()) - {check.name for check in CHECKS}:
        parser.error(f"--only {', '.join(sorted(unknown))}: --list names the checks")
    chosen = [check for check in CHECKS if asked.only is None or check.name in asked.only]
    if asked.list:
        print("\n".join(check.name for check in chosen))
        return 0
    budget_s = asked.budget or (float("inf") if setup.rehearsal else BUDGET_S)
    outcomes, until = list[Outcome](), monotonic() + budget_s
    for check in chosen:
        outcomes.append(run_check(check, setup, until - monotonic()))
        print(report.line(outcomes[-1]), flush=True)
        if asked.out is not None:  # after each: what ends this process takes nothing along
            report.write(asked.out, outcomes, "gpu_checks")
    print("\n" + report.ends(outcomes), end="")
    if late := report.not_run(outcomes):
        print(f"\nno time was left for {', '.join(late)}; run them by: {' '.join(f'--only {name}' for name in late)}")
    return int(any(outcome.status is Status.FAILED for outcome in outcomes))


def _answered(name: str, setup: Setup, answer: Path) -> int:
    """Runs the check in this process, and writes how it ended."""
    if setup.rehearsal:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    (check,) = (check for check in CHECKS if check.name == name)
    write_outcome(_outcome(check, setup, lambda seen: write_outcome(seen, kept_beside(answer))), answer)
    return 0


def _outcome(check: Check, setup: Setup, keep: Callable[[Outcome], None]) -> Outcome:
    """How the check ends; skipped if there is no GPU, which the first check says is wrong."""
    if not setup.rehearsal and check.name != FIRST:
        import torch

        if not torch.cuda.is_available():
            return Outcome(check.name, Status.SKIPPED, "torch finds no CUDA GPU; --rehearse runs on the CPU")
    return outcome_of(check, setup, keep)


if __name__ == "__main__":
    sys.exit(main())
