"""Rewrites the commands `accelerate ...` in a shell script, and in any other text that has some."""

from __future__ import annotations

import re

import click
from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS, AccelerateOption
from accel_launch.cli.options import OPTIONS
from accel_launch.cli.part_option import PART_OPTIONS
from accel_launch.config.accelerate_config import asks_nothing

from accel_compat.migrate.mentions import notes_of_mentions
from accel_compat.migrate.report import Kind, Note, Rewritten

_GAP = r"(?:[ \t]|\\\r?\n)+"
_KNOWN = "launch|config|env|test|estimate-memory"
_UNKNOWN = "merge-weights|tpu-config|to-fsdp2"
_COMMAND = re.compile(
    rf"(?<![\w./$-])(?:accelerate{_GAP}(?P<word>{_KNOWN}|{_UNKNOWN})"
    rf"|accelerate-(?P<dashed>{_KNOWN}|{_UNKNOWN})"
    rf"|(?P<python>python[\d.]*){_GAP}-m{_GAP}accelerate\.commands\.(?P<module>launch|config|env|test))(?![\w.-])"
)
#: a word of the shell; commands in it (`$(x)`) are read if nothing is quoted or nested in them
_WORD = re.compile(
    rf"(?P<gap>{_GAP})(?P<word>(?:'[^'\n]*'|\"(?:[^\"\n`$]|\$(?!\())*\"|\\[^\r\n]|\$\(\([^()'\"`\n]*\)\)"
    r"|\$\([^()'\"`\n]*\)|`[^'\"`\n]*`|[^\s'\"\\;|&#<>()`])++)(?![(`])"
)
_VARIABLE = re.compile(r"(?:(\$\{?)|(?<![\w$]))ACCELERATE_([A-Z0-9_]+)\b")
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+accelerate\b", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#")
_INSTEAD = {
    "merge-weights": "accel's checkpoints have whole weights; see docs/reference/checkpoints.md",
    "tpu-config": "accel does not configure TPUs",
    "to-fsdp2": "accel config update rewrites a file in the words of FSDP2",
}
_FLAGS: dict[str, click.Option] = {
    flag: option
    for option in (*OPTIONS, *PART_OPTIONS, *ACCELERATE_OPTIONS)
    for flag in (*option.opts, *option.secondary_opts)
}
_VARIABLES = {str(option.envvar) for option in OPTIONS if option.envvar} | {"ACCEL_LOG_LEVEL"}


def rewrite_commands(text: str) -> Rewritten:
    """The text with accel's commands, flags and variables; comments stay."""
    out: list[str] = []
    notes: list[Note] = []
    done = 0
    for found in _COMMAND.finditer(text):
        if found.start() < done or _in_comment(text, found.start()):
            continue
        line = text.count("\n", 0, found.start()) + 1
        word = found["word"] or found["dashed"] or found["module"]
        if word in _INSTEAD:
            notes.append(Note(line, Kind.BY_HAND, f"accelerate {word}: there is no such command; {_INSTEAD[word]}"))
            continue
        new = f"{found['python']} -m accel {word}" if found["python"] else f"accel {word}"
        notes.append(Note(line, Kind.CHANGED, f"{_one_line(found[0])} -> {new}"))
        out += [text[done : found.start()], new]
        done = found.end()
        if word in ("launch", "test", "config", "env"):
            flags, done = _flags(text, done, line, notes)
            out.append(flags)
    result, more = _variables("".join([*out, text[done:]]))
    notes += more
    notes += notes_of_mentions(text)
    for found in _IMPORT.finditer(text):
        words = "Python inside another text imports Accelerate: import accel there"
        notes.append(Note(text.count("\n", 0, found.start()) + 1, Kind.BY_HAND, words))
    return Rewritten(result, tuple(sorted(notes)))


def _flags(text: str, start: int, line: int, notes: list[Note]) -> tuple[str, int]:
    """The options that follow a command, rewritten, and where the first word after them begins."""
    out: list[str] = []
    while (found := _WORD.match(text, start)) is not None and found["word"].startswith("-"):
        flag, between, value = found["word"].partition("=")
        option, end = _FLAGS.get(flag[:2] + flag[2:].replace("-", "_")), found.end()
        if option is not None and not option.is_flag and not between:
            after = _WORD.match(text, end)
            if after is None:
                notes.append(
                    Note(line, Kind.BY_HAND, f"{flag} and what follows could not be read: check these options")
                )
                break
            between, value, end = after["gap"], after["word"], after.end()
        at = line + found["gap"].count("\n")
        new, note = _flag(option, flag, between, value)
        if note is not None:
            notes.append(Note(at, *note))
        out.append(f"{found['gap']}{new}" if new else "")
        line, start = line + text.count("\n", start, end), end
    return "".join(out), start


def _flag(option: click.Option | None, flag: str, between: str, value: str) -> tuple[str, tuple[Kind, str] | None]:
    """The words for an option in accel, empty if it asks for nothing, with what to say of that."""
    same = f"{flag}{between}{value}"
    shown = f"{flag} {value}".rstrip()
    if option is None:
        return same, (Kind.BY_HAND, f"{flag} is not an option of accel: leave it out")
    if not isinstance(option, AccelerateOption):
        return same, None
    if "$(" in value or "`" in value:
        return same, (Kind.BY_HAND, f"{shown}: accel launch --help says what this is in accel")
    if option.renamed:
        if "," in option.renamed or option.renamed != option.renamed.lower():
            return same, (Kind.BY_HAND, f"{shown}: in accel this is {option.renamed}")
        new = f"{option.renamed}{between}{value}"
        return new, (Kind.CHANGED, f"{shown} -> {option.renamed} {value}".rstrip())
    if option.why and (option.is_flag or not asks_nothing(value)):
        return same, (Kind.BY_HAND, f"{shown} is not supported: {option.why}; leave it out")
    return "", (Kind.CHANGED, f"{shown} is left out: it asks for nothing here")


def _one_line(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").replace("\\\r\n", " ").split())


def _in_comment(text: str, place: int) -> bool:
    before = text[text.rfind("\n", 0, place) + 1 : place]
    found = _COMMENT.search(before)
    return found is not None and before[: found.start()].count('"') % 2 == before[: found.start()].count("'") % 2 == 0


def _variables(text: str) -> tuple[str, list[Note]]:
    """The text with accel's variables."""
    notes: list[Note] = []

    def change(found: re.Match[str]) -> str:
        line = text.count("\n", 0, found.start()) + 1
        own = f"ACCEL_{found[2]}"
        if _in_comment(text, found.start()):
            return found[0]
        if own not in _VARIABLES:
            notes.append(Note(line, Kind.BY_HAND, f"ACCELERATE_{found[2]} sets nothing in accel"))
            return found[0]
        notes.append(Note(line, Kind.CHANGED, f"ACCELERATE_{found[2]} -> {own}"))
        return f"{found[1] or ''}{own}"

    return _VARIABLE.sub(change, text), notes
