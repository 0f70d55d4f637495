"""Run a script as one rank, in a process that `accel rehearse` starts."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from accel_state.environ import process_environ

from accel_rehearse.command import MADE
from accel_rehearse.loop_bounds import RehearsalOver
from accel_rehearse.notes import notes_of
from accel_rehearse.protected_files import ProtectedFiles
from accel_rehearse.rank import as_rank, topology_of
from accel_rehearse.refusal import CannotRehearse, line_of_error
from accel_rehearse.rehearsal import Rehearsal


def main(arguments: Sequence[str]) -> int:
    """Run a script as one rank, and write what was noted into a folder.

    Args:
        arguments: The words FOLDER KIND SCRIPT [ARGUMENTS]; the folder has a file `asked.json`.

    Returns:
        The exit code: 0, also if the script cannot be rehearsed, which the notes say.
    """
    folder, kind, script, *rest = arguments
    asked = json.loads((Path(folder) / "asked.json").read_text())
    rank = asked["ranks"][int(process_environ().get("RANK", "0"))]
    rehearsal = Rehearsal(asked["steps"], cpu=asked["cpu"])
    place = topology_of(rank, asked["size"], asked["machines"])
    files, fault = ProtectedFiles(Path(folder) / MADE), list[str]()
    with as_rank(place, cpu=asked["cpu"], on_call=rehearsal.exchanges.call):
        try:
            with nullcontext() if asked["in_place"] else files.watched(), rehearsal.running():
                _run(script, rest, module=kind == "module")
        except (Exception, RehearsalOver, SystemExit) as error:  # noqa: BLE001 - told by its line
            fault = _fault_of(error)
        notes = notes_of(rehearsal, rank, failed=bool(fault))
    if fault:
        what, line, remedy, kind = fault
        notes[kind].append([what, line, remedy])
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(notes))
    return 0


def _fault_of(error: BaseException) -> list[str]:
    """Return what ended a script, its line and a way out, and whether that is a mistake of the script or a refusal."""
    line = line_of_error(error)
    if isinstance(error, RehearsalOver) or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return []
    if isinstance(error, SystemExit):
        return [f"the script ends with exit code {error.code}", line, "see its output", "mistakes"]
    traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, CannotRehearse):
        return [str(error), line, "rehearse without it", "refusals"]
    if _of_fakes(error):
        return [what, line, "leave this out of the rehearsal, as what it computes depends on numbers", "refusals"]
    return [what, line, "a job would end here as well", "mistakes"]


def _of_fakes(error: BaseException | None) -> bool:
    """Return whether an error, or what it came from, is about tensors without numbers."""
    if error is None:
        return False
    words = str(error).lower()
    about = (
        "fake" in words or "data pointer" in words or "data is not allocated" in words or "tensor subclasses" in words
    )
    return about or type(error).__module__.startswith("torch._subclasses") or _of_fakes(error.__cause__)


def _run(script: str, arguments: Sequence[str], *, module: bool) -> None:
    sys.argv = [script, *arguments]
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
