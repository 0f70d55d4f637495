"""Run a script as one rank, in a process that `accel rehearse` starts."""

from __future__ import annotations

import json
import re
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from accel_state.environ import process_environ
from accel_state.topology import Rendezvous, Topology
from accel_verify.runner import run_script

from accel_rehearse.loop_bounds import RehearsalOver
from accel_rehearse.notes import notes_of
from accel_rehearse.protected_files import protecting
from accel_rehearse.rank import become_rank
from accel_rehearse.refusal import CannotRehearse, line_of_error
from accel_rehearse.rehearsal import Rehearsal

#: words of errors about tensors without numbers
_OF_FAKES = re.compile("fake|data pointer|data is not allocated|tensor subclasses", re.IGNORECASE)


def main(wanted: str, script: str, *arguments: str) -> None:
    """Run a script as one rank, and write what was noted into a folder, also if it cannot be rehearsed.

    Args:
        wanted: What is asked for, as JSON.
        script: The script.
        arguments: Its arguments.
    """
    asked = json.loads(wanted)
    rank = asked["ranks"][int(process_environ()["RANK"])]
    size = asked["size"]
    mine = size // asked["machines"]
    place = Topology(rank, size, rank % mine, mine, rank // mine, Rendezvous("127.0.0.1", 1), "accel rehearse")
    folder = Path(asked["folder"])
    rehearsal = Rehearsal(asked["steps"], cpu=asked["cpu"])
    if not asked["in_place"]:
        sys.addaudithook(protecting(folder / "made"))
    become_rank(place, on_call=rehearsal.exchanges.call)
    rehearsal.begin()
    try:
        with suppress(RehearsalOver), rehearsal.mode:
            run_script(script, arguments, module=asked["module"])
            rehearsal.exchanges.call("the end of the script")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told by its line
        _note_error(error, rehearsal)
    (folder / f"rank-{rank}.json").write_text(json.dumps(notes_of(rehearsal, place)))


def _note_error(error: BaseException, rehearsal: Rehearsal) -> None:
    """Note what ended a script, its line and a way out, as a mistake of the script or as a refusal."""
    if isinstance(error, StopIteration) and rehearsal.ends_at:
        return  # a script that asks for each batch may ask for one more than there are steps
    traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}"
    of_fakes = _OF_FAKES.search(f"{type(error)} {what} {error.__cause__!r}")
    unwritten = any(str(path) in what for call in rehearsal.unwritten.call_args_list for path in call.args[:1])
    if of_fakes or isinstance(error, CannotRehearse) or unwritten:
        problems, remedy = (
            rehearsal.refusals,
            "leave this out of a rehearsal, which knows no numbers and writes no weights",
        )
    else:
        problems, remedy = rehearsal.mistakes, "a job would end here as well: do as the error says"
    problems.append((what, line_of_error(error), remedy))


if __name__ == "__main__":
    main(*sys.argv[1:])
