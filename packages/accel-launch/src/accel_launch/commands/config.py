"""`accel config`: writes, updates and shows the file of settings."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accel_state.environ import process_environ
from accel_state.errors import CannotRun

from accel_launch.arguments import CommandLine, split
from accel_launch.config import DEFAULT_NAME, config_folder, interpret, read_content
from accel_launch.config_help import config_help
from accel_launch.config_writer import file_text, keep_backup, write_config
from accel_launch.foreign_keys import DISTRIBUTED_TYPE, LEGACY_FP16
from accel_launch.kinds import Value
from accel_launch.nearest import did_you_mean
from accel_launch.options import BY_KEY, BY_NAME
from accel_launch.settings import read_variables

ASK = "accel config"
#: what each command takes besides the options of accel launch
COMMANDS = {"default": ("--overwrite",), "update": (), "show": ("--origin",)}


def run(tokens: Sequence[str]) -> int:
    """Exit code 0 after what was asked for was done.

    Raises: CannotRun with every reason why it was not.
    """
    name = tokens[0] if tokens and not tokens[0].startswith("-") else None
    if name is not None and name not in COMMANDS:
        meant = did_you_mean(name, COMMANDS)
        listed = ", ".join(COMMANDS)
        raise CannotRun(ASK, [f"there is no command accel config {name}{meant}; the commands are: {listed}"])
    own = COMMANDS[name] if name is not None else ()
    rest = tokens[1:] if name is not None else tokens
    line = split([token for token in rest if token not in own])
    if line.help:
        print(config_help(name), end="")
        return 0
    given = any(token in own for token in rest)
    environ = process_environ()
    if name == "show":
        return _show(line, environ, origins=given)
    if name == "default":
        return _default(line, environ, overwrite=given)
    return _update(line, environ) if name == "update" else _ask(line, environ)


def _path(line: CommandLine, environ: Mapping[str, str]) -> Path:
    """The file that a flag or a variable names, or else the one that accel launch reads without them."""
    variables, _ = read_variables(environ)
    named = line.flags.get("config_file", variables.get("config_file"))
    return Path(str(named)) if named is not None else config_folder(environ) / DEFAULT_NAME


def _refuse_others(line: CommandLine, command: str, accepted: Callable[[str], bool], instead: str) -> None:
    """Raises: CannotRun if the command line holds more than options that are accepted."""
    stray = [] if line.script is None else [f"{command} takes options only, found {line.script!r}"]
    others = [BY_NAME[name].flags[-1] for name in line.flags if name != "config_file" and not accepted(name)]
    problems = [*line.problems, *stray, *(f"{command} takes no {flag}: {instead}" for flag in others)]
    if problems:
        raise CannotRun(command, problems)


def _ask(line: CommandLine, environ: Mapping[str, str]) -> int:
    _refuse_others(line, ASK, lambda name: False, "it asks; accel config default takes options and asks nothing")
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or environ.get("TERM") == "dumb":
        raise CannotRun(
            ASK,
            [
                "its questions need a terminal with a keyboard, and there is none here; the same without questions:"
                " accel config default --num_processes 2 --mixed_precision bf16 (accel config --help lists the options)"
            ],
        )
    import socket

    from accel_launch.job import this_machine
    from accel_launch.questionnaire import ask_all
    from accel_launch.questions import Here

    path = _path(line, environ)
    before = _understood(path, _content(path)) if path.exists() else {}
    machine = this_machine(environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(machine.accelerators))))
    gpus = tuple(each.strip() for each in visible.split(",")[: machine.accelerators])
    values = ask_all(Here(machine, gpus, socket.gethostname()), before)
    write_config(path, file_text(values, path))
    _tell_next(path, line, environ)
    return 0


def _default(line: CommandLine, environ: Mapping[str, str], *, overwrite: bool) -> int:
    command = f"{ASK} default"
    instead = "it has no place in a file; give it to accel launch"
    _refuse_others(line, command, lambda name: BY_NAME[name].key is not None, instead)
    from accel_launch.job import this_machine

    path = _path(line, environ)
    values = {name: value for name, value in line.flags.items() if name != "config_file"}
    found = this_machine(environ).accelerators
    if found and not values.get("cpu"):
        chosen = values.get("gpu_ids", "all")
        each = found if chosen == "all" else len(str(chosen).split(","))
        values.setdefault("num_processes", each * int(values.get("num_machines", 1)))
    text = file_text(values, path)
    if path.exists() and not overwrite and _text(path) != text:
        problem = f"{path} is there already, and says something else: move it away, or add --overwrite"
        raise CannotRun(command, [problem])
    write_config(path, text)
    _tell_next(path, line, environ)
    return 0


def _update(line: CommandLine, environ: Mapping[str, str]) -> int:
    command = f"{ASK} update"
    _refuse_others(line, command, lambda name: False, "it changes no value; accel config default takes options")
    path = _path(line, environ)
    if not path.exists():
        option = _option_for(path, line)
        problem = f"there is no config file {path} to update: accel config default{option} makes one"
        raise CannotRun(command, [problem])
    content = _content(path)
    values = _understood(path, content)
    text = file_text(values, path)
    if _text(path) == text:
        print(f"{path} is in accel's own keys already; nothing was written")
        return 0
    from accel_launch.shown_config import as_yaml

    copy = keep_backup(path)
    write_config(path, text)
    print(f"{path} is rewritten in accel's own keys; what was there is now {copy}")
    for key in (DISTRIBUTED_TYPE, LEGACY_FP16):
        meaning = _meaning(key, content)
        if meaning:
            print(f"  {key}: {as_yaml(content[key])} is now {meaning}")
    dropped = [str(key) for key in content if not _kept(key, values) and not _meaning(key, content)]
    if dropped:
        print(f"dropped, for they set nothing here: {', '.join(dropped)}")
    return 0


def _kept(key: object, values: Mapping[str, Value]) -> bool:
    return key in BY_KEY and BY_KEY[str(key)].name in values


def _meaning(key: object, content: Mapping[object, object]) -> str:
    """What one of Accelerate's keys sets by itself, in accel's keys; nothing for a key that sets nothing."""
    if key not in (DISTRIBUTED_TYPE, LEGACY_FP16):
        return ""
    values, _ = interpret({key: content.get(key)})
    return ", ".join(f"{BY_NAME[name].key}: {str(value).lower()}" for name, value in values.items())


def _show(line: CommandLine, environ: Mapping[str, str], *, origins: bool) -> int:
    from accel_launch.job import choose, without_script
    from accel_launch.shown_config import setting_lines

    wrong = [*line.problems, *without_script(line, f"{ASK} show")]
    if wrong:
        raise CannotRun(f"{ASK} show", wrong)
    choices = choose(line, environ)
    print("\n".join(setting_lines(choices, origins=origins)), flush=True)
    if choices.problems:
        raise CannotRun(f"{ASK} show", choices.problems)
    return 0


def _content(path: Path) -> Mapping[object, object]:
    """Raises: CannotRun if the file cannot be read, with its name in each reason."""
    try:
        return read_content(path)
    except CannotRun as error:
        raise CannotRun(ASK, [f"{error.what}: {reason}" for reason in error.reasons]) from None


def _understood(path: Path, content: Mapping[object, object]) -> Mapping[str, Value]:
    """Raises: CannotRun if the file asks for anything that accel cannot do."""
    values, problems = interpret(content)
    if problems:
        raise CannotRun(ASK, [f"config file {path}: {problem}" for problem in problems])
    return values


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _option_for(path: Path, line: CommandLine) -> str:
    return f" --config_file {shlex.quote(str(path))}" if "config_file" in line.flags else ""


def _tell_next(path: Path, line: CommandLine, environ: Mapping[str, str]) -> None:
    option = _option_for(path, line)
    print(f"written: {path}\ntry it:  accel test{option}\nthen:    accel launch{option} YOUR_SCRIPT.py")
