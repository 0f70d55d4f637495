"""Splits a command line into the launcher's options, the script, and what belongs to the script."""

from collections.abc import Sequence
from dataclasses import dataclass

from accel_launch.foreign_flags import BY_FOREIGN_FLAG, foreign_family, foreign_problem, suggestions
from accel_launch.kinds import PAIRS, Value
from accel_launch.nearest import nearest_flag
from accel_launch.options import BY_FLAG, BY_NAME

HELP = ("-h", "--help")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line says; `flags` holds only the options that were given."""

    flags: dict[str, Value]
    script: str | None
    arguments: tuple[str, ...]
    help: bool
    problems: tuple[str, ...]


def split(tokens: Sequence[str]) -> CommandLine:
    """The parts of a command line: options up to the first token that is none, which is the script; then its arguments.

    Nothing after the script is looked at. A `--` before the script ends the options.
    """
    flags: dict[str, Value] = {}
    problems: list[str] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token in HELP:
            return CommandLine(flags, None, (), True, ())
        if token == "--":
            position += 1
            break
        if not token.startswith("-") or token == "-":
            break
        flag, attached = _flag_and_value(token)
        if flag not in BY_FLAG and flag not in BY_FOREIGN_FLAG:
            problems.append(_unknown(flag))
            # Nobody knows whether an unknown flag takes a value: what follows cannot be told apart.
            return CommandLine(flags, None, (), False, tuple(problems))
        position += 1
        if not _takes_value(flag):
            if attached is not None:
                problems.append(f"{flag} takes no value, found {attached!r}")
        elif attached is None:
            if position == len(tokens) or tokens[position] in BY_FLAG or tokens[position] in BY_FOREIGN_FLAG:
                found = f"the option {tokens[position]}" if position < len(tokens) else "the end of the line"
                problems.append(f"{flag} needs a value ({_expected(flag)}), found {found}")
                continue
            attached = tokens[position]
            position += 1
        if flag in BY_FOREIGN_FLAG:
            problem = foreign_problem(flag, attached)
            problems += [problem] if problem is not None else []
        else:
            _follow(flag, attached, flags, problems)
    script = tokens[position] if position < len(tokens) else None
    expanded = _expand(flags, problems)
    return CommandLine(expanded, script, tuple(tokens[position + 1 :]), False, tuple(problems))


def _takes_value(flag: str) -> bool:
    return BY_FLAG[flag][0].kind.takes_value if flag in BY_FLAG else BY_FOREIGN_FLAG[flag].takes_value


def _expected(flag: str) -> str:
    return BY_FLAG[flag][0].kind.expected if flag in BY_FLAG else "as for accelerate launch"


def _follow(flag: str, attached: str | None, flags: dict[str, Value], problems: list[str]) -> None:
    """Notes what one of accel's own flags sets."""
    option, on = BY_FLAG[flag]
    value = option.kind.read(attached) if option.kind.takes_value else on
    if value is None:
        problems.append(f"{flag} {attached!r}: expected {option.kind.expected}")
    elif option.kind is PAIRS and option.name in flags:
        flags[option.name] = _joined(str(flags[option.name]), str(value))
    else:
        flags[option.name] = value


def _joined(before: str, after: str) -> str:
    """The pairs of a repeated option: all of them, and of a name that is in both those that came later."""
    again = {entry.partition("=")[0] for entry in after.split(",")}
    kept = [entry for entry in before.split(",") if entry.partition("=")[0] not in again]
    return ",".join([*kept, after])


def flags_for_a_queue(line: CommandLine, submit: str | None) -> list[str]:
    """A problem for each flag that says something of a queue's job, where the job goes to none and would run here."""
    if submit is not None:
        return []
    given = [BY_NAME[name].flags[-1] for name in ("submit_options", "submit_file") if name in line.flags]
    queues = BY_NAME["submit"].kind.metavar
    return [f"{flag} needs --submit {queues}: without it the job would run here" for flag in given]


def _flag_and_value(token: str) -> tuple[str, str | None]:
    """The flag of a token, and the value attached to it: `--n=2`, `-n=2` and `-n2`."""
    if "=" in token:
        flag, value = token.split("=", 1)
        return flag, value
    if not token.startswith("--") and token not in BY_FLAG and token[:2] in BY_FLAG:
        option, _ = BY_FLAG[token[:2]]
        if option.kind.takes_value:
            return token[:2], token[2:]
    return token, None


def _expand(flags: dict[str, Value], problems: list[str]) -> dict[str, Value]:
    """The flags with each short form replaced by what it stands for."""
    expanded = {name: value for name, value in flags.items() if BY_NAME[name].stands_for is None}
    for short in (BY_NAME[name] for name in flags):
        if short.stands_for is None:
            continue
        name, wanted = short.stands_for
        if expanded.setdefault(name, wanted) != wanted:
            long = BY_NAME[name].flags[-1]
            problems.append(
                f"{short.flags[-1]} means {long} {wanted}, found also {long} {expanded[name]}: give one of the two"
            )
    return expanded


def _unknown(flag: str) -> str:
    family = foreign_family(flag)
    if family is not None:
        return family
    suggested = {**suggestions(), **{own: own for own in BY_FLAG}}
    near = nearest_flag(flag, suggested)
    meant = f"; did you mean {suggested[near]}?" if near is not None else ""
    return (
        f"{flag} is not an option of accel launch{meant} (see accel launch --help;"
        " options for the script come after the script)"
    )
