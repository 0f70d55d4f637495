"""`python -m accel.verification.trial`: one of the two runs that `accel verify` starts."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from accel_state.environ import process_environ
from accel_state.environments import detect

from accel.utils import set_seed
from accel.verification.calm import calm
from accel.verification.configured import Recorder, recording
from accel.verification.record import Writer
from accel.verification.stopping import Enough, Limit
from accel.verification.verdict import verdict

SEED = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when something differs, or cannot be compared; what the script raises goes on."""
    parser = argparse.ArgumentParser(prog="accel.verification.trial", allow_abbrev=False)
    parser.add_argument("role", choices=["configured", "plain"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tolerance", type=float)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)

    def script() -> None:
        play(chosen.script, chosen.arguments, module=chosen.module)

    if chosen.role == "plain":
        found = verdict(script, chosen.folder, chosen.steps, chosen.tolerance)
        print("\n".join(found.lines), flush=True)
        (chosen.folder / "verdict").write_text("\n".join(found.lines))
        return 0 if found.same else 1
    recorder = Recorder(Writer(chosen.folder, detect(process_environ()).rank), Limit(chosen.steps))
    with calm(), recording(recorder):
        script()
    recorder.finish()
    return 0


def play(script: str, arguments: Sequence[str], *, module: bool) -> None:
    """Runs the script as `python script arguments` would, until it ends or has made enough steps.

    Raises: whatever the script raises, SystemExit with a code that is not 0 included.
    """
    sys.argv = [script, *arguments]
    set_seed(SEED)  # a script that sets none would start from other weights each time
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")
    except Enough:
        return
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


if __name__ == "__main__":
    sys.exit(main())
