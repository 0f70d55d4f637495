"""`accel config`: writes, updates and shows the file of settings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from accel_state.errors import CannotRun

from accel_launch.cli.launch_command import LaunchCommand, ResolvedOptions, Sources, resolved, stray_words
from accel_launch.cli.options import BY_NAME
from accel_launch.cli.suggest import did_you_mean

ASK = "accel config"
HELP = """Asks what to write into the file of settings that accel launch reads, at a terminal; Ctrl-C writes nothing. No
launch needs a file. Without --config_file it is default_config.yaml in $ACCEL_HOME, else in accel below $HF_HOME, else
in ~/.cache/huggingface/accel; or what $ACCEL_CONFIG_FILE names."""
EPILOG = "exit codes: 0 if it was done; 2 if not; 130 after Ctrl-C."
_IN_A_FILE = [name for name, option in BY_NAME.items() if option.key]


class _ConfigCommand(LaunchCommand):
    """A command that reads no config file: it is about to write one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads a line."""
        from accel_state.environ import process_environ

        environ = process_environ()
        ctx.obj = Sources(environ, reads_file=False)
        return super().parse_args(ctx, args)


class _ConfigGroup(click.Group):
    """The commands, and without one of them the questions, which take --config_file only."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads a line.

        Raises: CannotRun with the nearest command.
        """
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            listed = ", ".join(self.commands)
            meant = f"{did_you_mean(args[0], self.commands)}; the commands are: {listed}"
            raise CannotRun(ASK, [f"there is no command accel config {args[0]}{meant}"])
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["ask", *args]
        return super().parse_args(ctx, args)


def _path(options: ResolvedOptions) -> Path:
    """The file that a flag or a variable names, or else the one that accel launch reads without them."""
    from accel_launch.config.config_file import DEFAULT_NAME, config_folder

    named = options.settings.config_file
    return Path(named) if named is not None else config_folder(options.environ) / DEFAULT_NAME


def _refuse_others(options: ResolvedOptions, command: str, accepted: Callable[[str], bool], instead: str) -> None:
    """Raises: CannotRun if the command line holds more than options that are accepted."""
    stray = [] if options.script is None else [f"{command} takes options only, found {options.script!r}"]
    others = [name for name in options.given() if name != "config_file" and not accepted(name)]
    flags = [BY_NAME[name].flags[-1] for name in others]
    problems = [*options.line_problems, *stray, *(f"{command} takes no {flag}: {instead}" for flag in flags)]
    if problems:
        raise CannotRun(command, problems)


def ask(**values: object) -> int:
    """Asks for settings at the terminal, and writes the file.

    Raises: CannotRun if there is no terminal, or the file there cannot be followed.
    """
    options = resolved(click.get_current_context())
    environ = options.environ
    _refuse_others(options, ASK, lambda name: False, "it asks; accel config default takes options and asks nothing")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or environ.get("TERM") == "dumb":
        raise CannotRun(
            ASK,
            [
                "its questions need a terminal with a keyboard, and there is none here; the same without questions:"
                " accel config default --num_processes 2 --mixed_precision bf16 (accel config --help lists the options)"
            ],
        )
    from accel_launch.config.config_wizard import ask_all
    from accel_launch.config.config_writer import file_text, write_config
    from accel_launch.config.questions import Here
    from accel_launch.job.job import this_host

    path = _path(options)
    before = _understood(path, _content(path)) if path.exists() else {}
    answers = ask_all(Here.of(this_host(environ), environ), before)
    write_config(path, file_text(answers, path))
    _tell_next(path, options)
    return 0


def default(overwrite: bool, **values: object) -> int:
    """Writes what the options say and the GPUs that are found.

    Raises: CannotRun if another file is there, or an option has no place in a file.
    """
    options = resolved(click.get_current_context())
    command = f"{ASK} default"
    instead = "it has no place in a file; give it to accel launch"
    _refuse_others(options, command, lambda name: name in _IN_A_FILE, instead)
    from accel_launch.config.config_writer import file_text, write_config
    from accel_launch.job.job import this_host

    path = _path(options)
    said = {name: getattr(options.settings, name) for name in options.given() if name != "config_file"}
    found = this_host(options.environ).accelerators
    if found and not said.get("cpu"):
        chosen = said.get("gpu_ids", "all")
        each = found if chosen == "all" else len(str(chosen).split(","))
        said.setdefault("num_processes", each * int(said.get("num_machines", 1)))
    text = file_text(said, path)
    if path.exists() and not overwrite and _text(path) != text:
        problem = f"{path} is there already, and says something else: move it away, or add --overwrite"
        raise CannotRun(command, [problem])
    write_config(path, text)
    _tell_next(path, options)
    return 0


def update(**values: object) -> int:
    """Rewrites a file in accel's own keys, and says what became of Accelerate's.

    Raises: CannotRun if there is no file, or it asks for what accel cannot do.
    """
    options = resolved(click.get_current_context())
    command = f"{ASK} update"
    _refuse_others(options, command, lambda name: False, "it changes no value; accel config default takes options")
    from accel_launch.config.accelerate_config import DISTRIBUTED_TYPE, LEGACY_FP16
    from accel_launch.config.config_show import as_yaml
    from accel_launch.config.config_writer import file_text, keep_backup, write_config

    path = _path(options)
    if not path.exists():
        command_line = f"accel config default{_option_for(path, options)}"
        problem = f"there is no config file {path} to update: {command_line} makes one"
        raise CannotRun(command, [problem])
    content = _content(path)
    understood = _understood(path, content)
    text = file_text(understood, path)
    if _text(path) == text:
        print(f"{path} is in accel's own keys already; nothing was written")
        return 0
    copy = keep_backup(path)
    write_config(path, text)
    print(f"{path} is rewritten in accel's own keys; what was there is now {copy}")
    meanings = {key: _meaning(key, content) for key in (DISTRIBUTED_TYPE, LEGACY_FP16)}
    for key, meaning in meanings.items():
        if meaning:
            print(f"  {key}: {as_yaml(content[key])} is now {meaning}")
    kept = {BY_NAME[name].key for name in understood if name in BY_NAME}
    dropped = [str(key) for key in content if key not in kept and not meanings.get(str(key))]
    if dropped:
        print(f"dropped, for they set nothing here: {', '.join(dropped)}")
    return 0


def show(origin: bool, **values: object) -> int:
    """Prints the value that each setting would have in a launch with these options.

    Raises: CannotRun after that, if any of them is wrong.
    """
    from accel_launch.config.config_show import setting_lines

    context = click.get_current_context()
    options = resolved(context)
    stray = stray_words(options, SHOW)
    if stray:
        raise CannotRun(f"{ASK} show", [*options.line_problems, *stray])
    print("\n".join(setting_lines(options, origins=origin)), flush=True)
    if options.problems:
        raise CannotRun(f"{ASK} show", options.problems)
    return 0


def _meaning(key: str, content: Mapping[object, object]) -> str:
    """What one of Accelerate's keys sets by itself, in accel's keys; nothing for a key that sets nothing."""
    from accel_launch.config.config_file import interpret

    found, _ = interpret({key: content.get(key)})
    return ", ".join(f"{BY_NAME[name].key}: {str(value).lower()}" for name, value in found.items())


def _content(path: Path) -> Mapping[object, object]:
    """Raises: CannotRun if the file cannot be read, with its name in each reason."""
    from accel_launch.config.config_file import read_content

    try:
        return read_content(path)
    except CannotRun as error:
        raise CannotRun(ASK, [f"{error.what}: {reason}" for reason in error.reasons]) from None


def _understood(path: Path, content: Mapping[object, object]) -> Mapping[str, Any]:
    """Raises: CannotRun if the file asks for anything that accel cannot do."""
    from accel_launch.config.config_file import interpret

    found, problems = interpret(content)
    if problems:
        raise CannotRun(ASK, [f"config file {path}: {problem}" for problem in problems])
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _option_for(path: Path, options: ResolvedOptions) -> str:
    return f" --config_file {shlex.quote(str(path))}" if "config_file" in options.given() else ""


def _tell_next(path: Path, options: ResolvedOptions) -> None:
    option = _option_for(path, options)
    print(f"written: {path}\ntry it:  accel test{option}\nthen:    accel launch{option} YOUR_SCRIPT.py")


def _about(command: Callable[..., int]) -> str:
    """The first sentence on a command."""
    return (command.__doc__ or "").partition("\n")[0]


_NOT_IN_A_FILE = [name for name in BY_NAME if name not in _IN_A_FILE and name != "config_file"]
_ALL_BUT_FILE = [name for name in BY_NAME if name != "config_file"]
OVERWRITE = click.Option(["--overwrite"], is_flag=True, help="Write also if another file is there, which else stays.")
ORIGIN = click.Option(["--origin"], is_flag=True, help="Tell also who set each: a flag, a variable, the file, nobody.")
SHOW = LaunchCommand("config show", show, own=[ORIGIN], help=_about(show), omit=("module", "no_python"))
COMMAND = _ConfigGroup(
    "config",
    help=HELP,
    epilog=EPILOG,
    commands={
        "ask": _ConfigCommand("ask", ask, omit=_ALL_BUT_FILE, help=HELP, hidden=True),
        "default": _ConfigCommand("default", default, own=[OVERWRITE], omit=_NOT_IN_A_FILE, help=_about(default)),
        "update": _ConfigCommand("update", update, omit=_ALL_BUT_FILE, help=_about(update)),
        "show": SHOW,
    },
)
