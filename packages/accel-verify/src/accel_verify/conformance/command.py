"""Run `accel conformance`: the checks of a kind of device, and a table of their outcomes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

CHOSEN = "accel takes the device"
ENDED = "all checks run to their end"
RUNNER = "accel_verify.conformance.runner"
HELP = """Checks that a kind of device has what accel needs, against plain PyTorch on the CPU: tensors, generators,
loaders, training, accumulation, clipping, half precision, exchanges, checkpoints. For makers of hardware, whose package
has an entry point in the group accel.devices."""
EPILOG = """\b
examples:
  accel conformance --device cpu
  accel conformance --device npu -n 2 --json

exit codes: 0 if no check failed; 1 if any did, or could not run."""


@click.command("conformance", help=HELP, epilog=EPILOG)
@click.option("--device", "kind", required=True, metavar="KIND", help="Torch's name for the device, such as cpu.")
@click.option(
    "-n",
    "--num_processes",
    "size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many processes run the checks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of checks with precision and outcome.")
def COMMAND(kind: str, size: int, as_json: bool) -> int:
    """Run the checks, and print a table of their outcomes.

    Args:
        kind: Torch's name of the device, such as "cpu".
        size: Number of processes.
        as_json: Print JSON.

    Returns:
        The exit code: 1 if a check failed, else 0.
    """
    with tempfile.TemporaryDirectory(prefix="accel-conformance-") as folder:
        rows = _run(Path(folder), kind, size)
    if as_json:
        print(json.dumps({"device": kind, "processes": size, "checks": rows}, indent=2), flush=True)
    else:
        _print_table(rows, kind)
    return int(any(row["outcome"] == "failed" for row in rows))


def _run(folder: Path, kind: str, size: int) -> list[dict[str, str]]:
    """Return the outcome of each check: the first of all processes that is not "passed", if there is one."""
    command = [sys.executable, "-m", "accel", "launch", "-n", str(size), *(["--cpu"] if kind == "cpu" else [])]
    command += ["-m", RUNNER, str(folder), kind]
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
    print(f"accel conformance --device {kind}: {words}")
