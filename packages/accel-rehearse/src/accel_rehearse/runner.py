"""Rehearse a script as one rank, in a process that `accel rehearse` starts."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from accel_state.environ import process_environ

from accel_rehearse.loop_bounds import RehearsalOver
from accel_rehearse.notes import notes_of
from accel_rehearse.rank import as_rank, topology_of
from accel_rehearse.refusal import line_of_error
from accel_rehearse.rehearsal import Rehearsal


def main(arguments: Sequence[str]) -> int:
    """Rehearse a script, and write what was noted into a folder.

    Args:
        arguments: The words FOLDER KIND SCRIPT [ARGUMENTS]; the folder has a file `asked.json`.

    Returns:
        The exit code: 0, also if the script cannot be rehearsed, which the notes say.
    """
    folder, kind, script, *rest = arguments
    asked = json.loads((Path(folder) / "asked.json").read_text())
    rank = asked["ranks"][int(process_environ().get("RANK", "0"))]
    rehearsal = Rehearsal(asked["steps"], cpu=asked["cpu"])
    refusal = None
    with as_rank(topology_of(rank, asked["size"], asked["machines"]), cpu=asked["cpu"]):
        try:
            with rehearsal.running():
                _run(script, rest, module=kind == "module")
        except RehearsalOver:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                refusal = {"what": f"the script ended with exit code {end.code}", "line": line_of_error(end)}
        except Exception as error:  # noqa: BLE001 - whatever a script raises is told by its line
            traceback.print_exc()
            refusal = {"what": f"{type(error).__name__}: {error}", "line": line_of_error(error)}
        notes = notes_of(rehearsal, rank, asked["size"])
    if refusal is not None:
        notes["refusal"] = refusal
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(notes))
    return 0


def _run(script: str, arguments: Sequence[str], *, module: bool) -> None:
    sys.argv = [script, *arguments]
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
