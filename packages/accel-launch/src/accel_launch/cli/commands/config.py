"""Run `accel config`, which writes, updates and shows the config file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from accel_state.environ import process_environ
from accel_state.errors import CannotRun

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions
from accel_launch.cli.options import BY_NAME, OPTIONS

ASK = "accel config"
HELP = """Asks what to write into the config file that accel launch reads, at a terminal; Ctrl-C writes nothing. No
launch needs a file. The file is the one that --config_file or else $ACCEL_CONFIG_FILE names. Without either it is
default_config.yaml in $ACCEL_HOME, else in $HF_HOME/accel, else in huggingface/accel below $XDG_CACHE_HOME or
~/.cache."""
EPILOG = "exit codes: 0 if it was done; 2 if not; 130 after Ctrl-C."


class ConfigGroup(click.Group):
    """The commands of `accel config`. Without a command it asks questions, and takes --config_file only."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after `accel config`, which mean `ask` if they begin with an option or there are none."""
        asks = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["ask", *args] if asks else args)


def _this_file(options: ResolvedOptions) -> tuple[Path, str]:
    """Return the file that a line is about, and the option that names it for a next command."""
    from accel_launch.config.config_file import DEFAULT_NAME, config_folder

    named = options.settings.config_file
    path = Path(named) if named is not None else config_folder(process_environ()) / DEFAULT_NAME
    return path, f" --config_file {shlex.quote(str(path))}" if options.settings.is_flag("config_file") else ""


def ask(options: ResolvedOptions) -> int:
    """Ask for settings at the terminal, and write the file.

    Raises:
        CannotRun: There is no terminal, the present file asks for a feature that accel does not have, or it cannot be
            written.
    """
    import socket

    from accel_launch.config.config_update import settings_in
    from accel_launch.config.config_wizard import ask_settings, choose_at_terminal, write_at_terminal
    from accel_launch.job.visible_devices import visible_devices

    path, flag = _this_file(options)
    environ = process_environ()
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or environ.get("TERM") == "dumb":
        raise CannotRun(
            ASK,
            [
                "its questions need a terminal with a keyboard, and there is none here; the same without"
                " questions: accel config default --num_processes 2 --mixed_precision bf16"
            ],
        )
    before = settings_in(path, ASK) if path.exists() else {}
    try:
        gpus = visible_devices(environ)
        answers = ask_settings(choose_at_terminal, write_at_terminal, gpus, socket.gethostname(), before)
    except KeyboardInterrupt:
        print(f"{ASK}: ended by the user; nothing was written", file=sys.stderr, flush=True)
        raise
    _write(path, answers, flag)
    return 0


def default(options: ResolvedOptions, overwrite: bool) -> int:
    """Write a config file with the given options, and a process for each visible GPU if no number is given.

    Args:
        options: Options to write.
        overwrite: Replace a file that says something else.

    Returns:
        0, the exit code.

    Raises:
        CannotRun: A file that says something else is there, or the file cannot be written.
    """
    from accel_launch.config.config_writer import file_text
    from accel_launch.job.visible_devices import visible_devices

    path, flag = _this_file(options)
    said = {name: getattr(options.settings, name) for name in options.settings.origins if name != "config_file"}
    gpus = visible_devices(process_environ())
    if gpus and not said.get("cpu"):
        chosen = said.get("gpu_ids", "all")
        per_machine = len(gpus) if chosen == "all" else len(chosen.split(","))
        said.setdefault("num_processes", per_machine * said.get("num_machines", 1))
    if path.exists() and not overwrite and _text(path) != file_text(said, path):
        raise CannotRun(
            f"{ASK} default", [f"{path} is there already, and says something else: move it away, or add --overwrite"]
        )
    _write(path, said, flag)
    return 0


def update(options: ResolvedOptions) -> int:
    """Replace a file by one in accel's own keys, and say which keys are dropped.

    Raises:
        CannotRun: There is no file, it asks for a feature that accel does not have, another backup is there, or the
            file cannot be written.
    """
    from accel_launch.config.config_update import update_of
    from accel_launch.config.config_writer import keep_backup, write_config

    path, flag = _this_file(options)
    if not path.exists():
        raise CannotRun(
            f"{ASK} update", [f"there is no config file {path} to update: accel config default{flag} makes one"]
        )
    new, before = update_of(path, ASK), path.read_text(encoding="utf-8")
    if before == new.text:
        print(f"{path} is in accel's own keys already; nothing was written")
        return 0
    copy = keep_backup(path, before)
    write_config(path, new.text)
    print(f"{path} is rewritten in accel's own keys; what was there is now {copy}")
    if new.left_out:
        print(f"dropped, for they set nothing here: {', '.join(new.left_out)}")
    return 0


def show(options: ResolvedOptions, origin: bool) -> int:
    """Print the value that each setting would have in a launch with these options.

    Args:
        options: Options of the launch.
        origin: Print the source of each value too.

    Returns:
        0, the exit code.

    Raises:
        CannotRun: A setting is wrong. It is raised after the print.
    """
    from accel_launch.config.config_show import setting_lines

    print("\n".join(setting_lines(options, origins=origin)), flush=True)
    if options.problems:
        raise CannotRun(f"{ASK} show", options.problems)
    return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, settings: Mapping[str, Any], flag: str) -> None:
    from accel_launch.config.config_writer import file_text, write_config

    write_config(path, file_text(settings, path))
    print(f"written: {path}\ntry it:  accel test{flag}\nthen:    accel launch{flag} YOUR_SCRIPT.py")


_FILE = BY_NAME["config_file"]
_OVERWRITE = click.Option(["--overwrite"], is_flag=True, help="Replace a file that says something else.")
_SOURCES = "Print also where each value comes from: a flag, a variable, the file or the default."
_ORIGIN = click.Option(["--origin"], is_flag=True, help=_SOURCES)
_IN_A_FILE = [option for option in OPTIONS if option.key or option is _FILE]
COMMAND = ConfigGroup(
    "config",
    help=HELP,
    epilog=EPILOG,
    commands=[
        LaunchCommand("ask", ask, options=[_FILE], writes_file=True),
        LaunchCommand("default", default, own=[_OVERWRITE], options=_IN_A_FILE, writes_file=True),
        LaunchCommand("update", update, options=[_FILE], writes_file=True),
        LaunchCommand("show", show, own=[_ORIGIN]),
    ],
)
