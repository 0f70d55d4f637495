"""What there is to complete: the commands of `accel`, and the words and options that each takes."""

from dataclasses import dataclass

from accel_launch.command_plugins import load_command
from accel_launch.kinds import FOLDER, PATH
from accel_launch.options import OPTIONS, Option

FILES, FOLDERS = "files", "folders"
SHELL_NAMES = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True)
class Flag:
    """One option: the spellings that are offered, those that are understood as well, and the words it may have.

    `values` are words to choose from, or FILES or FOLDERS; empty where it may be any word. `after` is the word of the
    command after which alone it may come; empty where it may come anywhere.
    """

    offered: tuple[str, ...]
    others: tuple[str, ...]
    takes_value: bool
    values: tuple[str, ...] = ()
    help: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """One command; a script ends its options, and what comes after is the script's own."""

    name: str
    help: str
    words: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    script: bool = False


HELP_FLAG = Flag(("--help",), ("-h",), False, (), "What the command takes.")


def grammar() -> tuple[Command, ...]:
    """Every command of `accel`, in the order of its help."""
    from accel_launch.cli import COMMANDS

    return tuple(_command(name, about) for name, about in COMMANDS.items())


def _command(name: str, about: str) -> Command:
    from accel_launch.commands import checkpoint, config

    launch = tuple(_flag(option) for option in OPTIONS)
    unscripted = tuple(_flag(option) for option in OPTIONS if option.name not in ("module", "no_python"))
    parts: dict[str, tuple[tuple[str, ...], tuple[Flag, ...], bool]] = {
        "launch": ((), launch, True),
        "verify": ((), (*_brought("verify"), *launch), True),
        "test": ((), unscripted, False),
        "env": ((), unscripted, False),
        "config": (
            tuple(config.COMMANDS),
            (
                *(Flag((flag,), (), False, after=word) for word, flags in config.COMMANDS.items() for flag in flags),
                *unscripted,
            ),
            False,
        ),
        "checkpoint": (tuple(checkpoint.PATHS), (), False),
        "completion": (SHELL_NAMES, (), False),
        "estimate-memory": ((), _brought("estimate-memory"), False),
    }
    words, flags, script = parts.get(name, ((), (), False))
    return Command(name, about, words, (HELP_FLAG, *flags), script)


def _brought(name: str) -> tuple[Flag, ...]:
    """The options of a command that another package brings; none if that is not installed."""
    module = load_command(name)
    options = {} if module is None else module.FLAGS
    return tuple(Flag((flag,), (), values is not None, values or ()) for flag, values in options.items())


def _flag(option: Option) -> Flag:
    offered = (*option.flags, *option.off[:1])
    others = tuple(one for one in (*option.on, *option.off) if one not in offered)
    return Flag(offered, others, option.kind.takes_value, _values(option), option.help)


def _values(option: Option) -> tuple[str, ...]:
    metavar = option.kind.metavar or ""
    if metavar.startswith("{"):
        return tuple(metavar.strip("{}").split(","))
    return (FILES,) if option.kind is PATH else (FOLDERS,) if option.kind is FOLDER else ()
