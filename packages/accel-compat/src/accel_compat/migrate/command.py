"""Run `accel migrate`, which rewrites programs for Accelerate, and says what is left to a person."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from accel_state.errors import CannotRun

HELP = """Rewrites FILES for accel in place: imports in Python and in notebooks, commands and their options in shell
scripts, and config files. Prints what needs a hand and why, what works differently, with the page that tells more, and
a diff. A second run changes nothing."""
EPILOG = """\b
examples:
  accel migrate train.py run.sh config.yaml
  accel migrate --check src/*.py             writes nothing

exit codes: 0 if all is well; 1 with --check if a file would change; 2 if a file cannot be read or is of no known
kind (the others are still rewritten), or if one is read-only or a link that leads elsewhere (then no file is
changed)."""
PAGE = "docs/guides/programs-for-accelerate.md"


def run(files: Sequence[str], check: bool) -> int:
    """Rewrite files, and print what was done.

    Args:
        files: Paths of the files.
        check: Write nothing.

    Returns:
        0 if all is well, 1 if `check` has found a file that would change.

    Raises:
        CannotRun: Files cannot be read or are of no known kind, and the others were rewritten. Or files must not be
            replaced, and none was. The message lists all.
    """
    from accel_compat.migrate.replacement import replace_files
    from accel_compat.migrate.report import CannotRewrite, Kind
    from accel_compat.migrate.source_file import Migration, migrate

    paths = {os.path.realpath(file): Path(file) for file in reversed(files)}  # a link and its file are one
    problems: list[str] = []
    migrations: list[Migration] = []
    for path in reversed(paths.values()):
        try:
            migrations.append(migrate(path))
        except CannotRewrite as error:
            problems.append(f"{path}: {error}")
    changing = [one for one in migrations if one.changes]
    refused = replace_files(changing, check=check)
    if refused and not check:
        print("no file was changed", file=sys.stderr)
        raise CannotRun("accel migrate", [*problems, *refused])
    for one in migrations:
        lines = [f"{one.path}:{note.line}: {note.kind}: {note.words}" for note in sorted(one.after.notes)]
        before, after = one.before.splitlines(), one.after.text.splitlines()
        lines += difflib.unified_diff(before, after, f"{one.path}", f"{one.path} (accel)", lineterm="", n=0)
        _say("".join(f"{line}\n" for line in lines))
    hands = sum(note.kind is Kind.BY_HAND for one in migrations for note in one.after.notes)
    done = "would change" if check else "changed"
    print(f"{len(changing)} of {len(paths)} files {done}; {hands} places need a hand; see {PAGE}", file=sys.stderr)
    if problems or refused:
        raise CannotRun("accel migrate", [*problems, *refused])
    return 1 if check and changing else 0


def _say(text: str) -> None:
    """Print a text whatever the terminal's encoding: characters that it lacks are written as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


COMMAND = click.Command(
    "migrate",
    callback=run,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Argument(["files"], nargs=-1, required=True, metavar="FILES..."),
        click.Option(["--check"], is_flag=True, help="Write nothing; print what would change."),
    ],
)
