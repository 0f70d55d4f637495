"""Check before anything starts that a script can be started. Python itself says if it has no such module."""

from pathlib import Path

from accel_launch.cli.launch_command import ResolvedOptions
from accel_launch.cli.suggest import did_you_mean


def script_problem(options: ResolvedOptions, cwd: Path) -> str | None:
    """Return why the script of a command line cannot be started, or None."""
    script, settings = options.script, options.settings
    if settings.module and settings.no_python:
        return "--module and --no_python were both given: SCRIPT is either a module or a program; give one of the two"
    if script is None:
        return "no script was given: accel launch [options] SCRIPT [arguments of the script]"
    path = cwd / script
    if settings.module or settings.no_python or path.is_file():
        return None
    if path.is_dir():
        why = "is a directory; name the file to run, or use -m for a module"
    else:
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        why = f"does not exist{did_you_mean(script, [str(Path(script).with_name(entry.name)) for entry in beside])}"
    return f"script {script!r} {why} (working directory {cwd})"
