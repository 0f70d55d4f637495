"""The command `python -m conformance`: the checks of a kind of device, and a table of their outcomes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ENDED = "all checks run to their end"
DESCRIPTION = """\
Checks that a kind of device has what accel needs, against plain PyTorch on the CPU: tensors, generators,
loaders, training, accumulation, clipping, half precision, exchanges, checkpoints. For makers of hardware, whose
package has an entry point in the group accel.devices."""
EPILOG = """examples:
  python -m conformance --device cpu
  python -m conformance --device npu -n 2 --json

exit codes: 0 if no check failed; 1 if any did, or could not run.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks, and prints a table of their outcomes; 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", required=True, metavar="KIND", help="torch's name for the device, such as cpu")
    parser.add_argument("-n", "--num_processes", type=int, default=1, help="how many processes run the checks (1)")
    parser.add_argument("--json", action="store_true", help="print JSON: a list of checks with precision and outcome")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="accel-conformance-") as folder:
        rows = _run(Path(folder), asked.device, asked.num_processes)
    if asked.json:
        print(json.dumps({"device": asked.device, "processes": asked.num_processes, "checks": rows}, indent=2))
    else:
        _print_table(rows, asked.device)
    return int(any(row["outcome"] == "failed" for row in rows))


def _run(folder: Path, kind: str, size: int) -> list[dict[str, str]]:
    """Return the outcome of each check: the first of all processes that is not "passed", if there is one."""
    command = [sys.executable, "-m", "accel", "launch", "-n", str(size), *(["--cpu"] if kind == "cpu" else [])]
    command += ["-m", "conformance.runner", str(folder), kind]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    outcomes: dict[tuple[str, str], dict[str, str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            check = row["precision"], row["check"]
            if check not in outcomes or outcomes[check]["outcome"] == "passed":
                outcomes[check] = row
    rows = list(outcomes.values())
    if ended.returncode and not any(row["outcome"] == "failed" for row in rows):
        last = rows[-1]["check"] if rows else "the start"
        words = f"exit code {ended.returncode} after {last}\n{ended.stdout[-2000:]}"
        rows.append({"check": ENDED, "precision": "", "outcome": "failed", "words": words})
    return rows


def _print_table(rows: list[dict[str, str]], kind: str) -> None:
    for row in rows:
        print(f"{row['outcome']:<11}  {row['precision']:<4}  {row['check']}")
        if row["words"]:
            print("             " + row["words"].replace("\n", "\n             "))
    counts = Counter(row["outcome"] for row in rows)
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "not offered", "failed"))
    print(f"conformance of {kind}: {words}")


if __name__ == "__main__":
    sys.exit(main())
