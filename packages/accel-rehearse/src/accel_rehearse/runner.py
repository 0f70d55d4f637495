"""Run a script as one rank, in a process that `accel rehearse` starts."""

from __future__ import annotations

import json
import re
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from accel_comm.errors import AccelError
from accel_state.environ import process_environ
from accel_state.topology import Rendezvous, Topology

from accel_rehearse.loop_bounds import RehearsalOver
from accel_rehearse.made_files import MADE
from accel_rehearse.notes import notes_of
from accel_rehearse.protected_files import ProtectedFiles
from accel_rehearse.rank import as_rank
from accel_rehearse.refusal import CannotRehearse, line_of_error
from accel_rehearse.rehearsal import Rehearsal

#: words of errors about tensors without numbers
_OF_FAKES = re.compile("fake|data pointer|data is not allocated|tensor subclasses", re.IGNORECASE)


def main(arguments: Sequence[str]) -> int:
    """Run a script as one rank, and write what was noted into a folder.

    Args:
        arguments: What is asked for, as JSON; the script, and its arguments.

    Returns:
        The exit code: 0, also if the script cannot be rehearsed, which the notes say.
    """
    asked, script, *rest = json.loads(arguments[0]), *arguments[1:]
    rank, size, cpu = (
        asked["ranks"][int(process_environ().get("RANK", "0"))],
        asked["size"],
        asked["cpu"],
    )
    mine = size // asked["machines"]
    place = Topology(
        rank,
        size,
        rank % mine,
        mine,
        rank // mine,
        Rendezvous("127.0.0.1", 1),
        "accel rehearse",
    )
    rehearsal, faults = Rehearsal(asked["steps"], cpu=cpu), dict[str, list[str]]()
    with as_rank(place, on_call=rehearsal.exchanges.call):
        try:
            files = nullcontext() if asked["in_place"] else ProtectedFiles(Path(asked["folder"], MADE)).watched()
            with files, rehearsal.running():
                _run(script, rest, module=asked["module"])
        except (Exception, RehearsalOver, SystemExit) as error:  # noqa: BLE001 - told by its line
            faults = _faults_of(error, rehearsal)
        notes = notes_of(rehearsal, place, failed=bool(faults))
    for problems, fault in faults.items():
        notes[problems].append(fault)
    Path(asked["folder"], f"rank-{rank}.json").write_text(json.dumps(notes))
    return 0


def _faults_of(error: BaseException, rehearsal: Rehearsal) -> dict[str, list[str]]:
    """Return what ended a script, its line and a way out, as a mistake of the script or as a refusal."""
    # a script that asks for each batch may ask for one more than there are steps
    is_over = isinstance(error, RehearsalOver) or (isinstance(error, StopIteration) and rehearsal.bounds.is_done)
    line, what = line_of_error(error), f"{type(error).__name__}: {error}"
    if is_over or (isinstance(error, SystemExit) and not error.code):
        return {}
    traceback.print_exception(error)
    if isinstance(error, CannotRehearse):
        return {"refusals": [str(error), line, "rehearse without it"]}
    if any(call.args and str(call.args[0]) in what for call in rehearsal.unwritten.call_args_list):
        return {"refusals": [what, line, "leave out to read what save_pretrained has not written in a rehearsal"]}
    if _is_of_fakes(error):
        return {
            "refusals": [
                what,
                line,
                "leave this out of the rehearsal, as what it computes depends on numbers",
            ]
        }
    ends = "a job would end here as well"
    return {"mistakes": [what, line, f"{ends}: do as the error says" if isinstance(error, AccelError) else ends]}


def _is_of_fakes(error: BaseException | None) -> bool:
    """Return whether an error, or what it came from, is about tensors without numbers."""
    if error is None:
        return False
    of_fakes = _OF_FAKES.search(str(error)) or type(error).__module__.startswith("torch._subclasses")
    return bool(of_fakes) or _is_of_fakes(error.__cause__)


def _run(script: str, arguments: Sequence[str], *, module: bool) -> None:
    sys.argv = [script, *arguments]
    if module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(script).resolve().parent)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
