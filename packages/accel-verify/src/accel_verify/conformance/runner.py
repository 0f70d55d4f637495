"""Runs the checks in a process of a launch, and writes a line for each into a file of this process."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from accel import Accelerator
from accel_state import release
from accel_state.environ import process_environ
from accel_state.errors import CannotRun

from accel_verify.conformance.check import NotOffered, require
from accel_verify.conformance.checks import CHECKS
from accel_verify.conformance.command import CHOSEN, PRECISIONS

#: notes the outcome of a check in a precision, and words about it
Note = Callable[[str, str, str, str], None]


def main(folder: Path, kind: str) -> int:
    """Exit code 0 if no check failed; with several processes the first failure ends all."""
    rank = int(process_environ().get("RANK", "0"))
    with (folder / f"{rank}.jsonl").open("w", encoding="utf-8") as file:

        def note(check: str, precision: str, outcome: str, words: str) -> None:
            row = {"check": check, "precision": precision, "outcome": outcome, "words": words}
            file.write(json.dumps(row) + "\n")
            file.flush()

        code = 0
        for precision in PRECISIONS:
            code = max(code, _run(folder, kind, precision, note))
            if code > 1:
                return 1
            release()
    return code


def _run(folder: Path, kind: str, precision: str, note: Note) -> int:
    """0 if no check of the precision failed; 2 if nothing more can be run."""
    mine = [check for check in CHECKS if precision in check.precisions]
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=kind == "cpu", project_dir=folder)
        found = accelerator.device.type
        require(f"accel found the device {found}, and not {kind}: is its package installed?", found == kind)
    except CannotRun as error:
        for check in mine:
            note(check.name, precision, "not offered", str(error))
        return 0
    except Exception as error:  # noqa: BLE001 - code of a device fails in any way, and that is what is told
        note(CHOSEN, precision, "failed", f"{type(error).__name__}: {error}")
        return 2
    note(CHOSEN, precision, "passed", "")
    code = 0
    for check in mine:
        try:
            check.run(accelerator)
            note(check.name, precision, "passed", "")
        except NotOffered as reason:
            note(check.name, precision, "not offered", str(reason))
        except Exception as error:  # noqa: BLE001 - as above
            traceback.print_exc()
            note(check.name, precision, "failed", f"{type(error).__name__}: {error}")
            code = 1 if accelerator.num_processes == 1 else 2  # the others wait for this one
            if code > 1:
                return code
        accelerator.free_memory()
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
