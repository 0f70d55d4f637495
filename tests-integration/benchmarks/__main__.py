"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = """examples:
  nox -s bench                                        everything, about eight minutes on two cores
  nox -s bench -- --quick                             does every row still run? (its numbers say little)
  nox -s bench -- --only 'simulated world 512'        the rows whose names match, as a regular expression
  nox -s bench -- --only '^iterable' --seconds 20     the same ones longer, when the spread is wide
  nox -s bench -- --out runs/bench                    writes bench.json and bench.md there, too
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 where a row could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures accel against hand-written PyTorch and Accelerate, in turn, and compares with targets.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="PATTERN", default="", help="rows whose name this regular expression finds")
    parser.add_argument("--list", action="store_true", help="name the rows and measure nothing")
    parser.add_argument("--quick", action="store_true", help="three rounds of each row")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each row, setting up aside (default: 8)")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="where to write bench.json and bench.md")
    asked = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch; processes that are started inherit it

    from benchmarks import report
    from benchmarks.measure import Effort
    from benchmarks.processes import run
    from benchmarks.rows import ROWS

    rows = [row for row in ROWS if re.search(asked.only, row.name, flags=re.IGNORECASE)]
    if not rows:
        parser.error(f"--only {asked.only!r}: finds none of the {len(ROWS)} rows; --list names them")
    if asked.list:
        print("\n".join(row.name for row in rows))
        return 0
    about = report.machine()
    results = []
    for number, row in enumerate(rows, start=1):
        results.append(run(row, Effort(asked.seconds, asked.quick)))
        print(f"{number}/{len(rows)}  " + "  ".join(report.cells(results[-1])), file=sys.stderr, flush=True)
    print(report.text(results), end="")
    if asked.out is not None:
        report.write(asked.out, results, about)
    return int(any(result.failure is not None for result in results))


if __name__ == "__main__":
    sys.exit(main())
