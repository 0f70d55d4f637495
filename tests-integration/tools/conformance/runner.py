"""Run the checks in a process of a launch, and write a line for each into a file of this process."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from accel import Accelerator
from accel_state import detect, release
from accel_state.environ import process_environ
from accel_state.errors import CannotRun

from conformance.check import NotOffered, require
from conformance.checks import CHECKS

CHOSEN = "accel takes the device"


def main(folder: Path, kind: str) -> int:
    """Run the checks of a kind of device, and write their outcomes to FOLDER/RANK.jsonl.

    With several processes the first failure ends the run.

    Args:
        folder: Folder for the outcomes of all processes, and for what checks save.
        kind: Torch's name of the device.

    Returns:
        The exit code: 1 if a check failed, else 0.
    """
    topology, code = detect(process_environ()), 0
    with (folder / f"{topology.rank}.jsonl").open("w", encoding="utf-8") as file:
        for precision in CHECKS:
            for check, outcome, words in _outcomes(folder, kind, precision):
                row = {"check": check, "precision": precision, "outcome": outcome, "words": words}
                file.write(json.dumps(row) + "\n")
                file.flush()
                if outcome == "failed":
                    code = 1
                    if check == CHOSEN or topology.world_size > 1:  # the others wait for this process
                        return code
            release()
    return code


def _outcomes(folder: Path, kind: str, precision: str) -> Iterator[tuple[str, str, str]]:
    """Yield each check of a precision with its outcome, and words about it."""
    mine = {check.__name__.replace("_", " "): check for check in CHECKS[precision]}
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=kind == "cpu", project_dir=folder)
        found = accelerator.device.type
        require(f"accel found the device {found}, and not {kind}: is its package installed?", found == kind)
    except CannotRun as error:
        yield from ((name, "not offered", str(error)) for name in mine)
        return
    except Exception as error:  # noqa: BLE001 - code of a device fails in any way, and that is what is reported
        yield CHOSEN, "failed", f"{type(error).__name__}: {error}"
        return
    yield CHOSEN, "passed", ""
    for name, check in mine.items():
        outcome, words = "passed", ""
        try:
            check(accelerator)
        except NotOffered as reason:
            outcome, words = "not offered", str(reason)
        except Exception as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            outcome, words = "failed", f"{type(error).__name__}: {error}"
        yield name, outcome, words
        accelerator.free_memory()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
