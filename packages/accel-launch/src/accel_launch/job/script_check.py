"""Check before anything starts that a script is there. Python says if there is no such module, or nothing to run."""

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
    if settings.module or settings.no_python or path.exists():
        return None
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    meant = did_you_mean(script, [str(Path(script).with_name(entry.name)) for entry in beside])
    return f"script {script!r} does not exist{meant} (working directory {cwd})"
