"""Rewrite the commands `accelerate ...` in a shell script, or in any other text that has such commands."""

from __future__ import annotations

import re

from accel_launch.cli.accelerate_flags import ACCELERATE_OPTIONS, AccelerateOption
from accel_launch.cli.entry_option import ENTRY_OPTIONS
from accel_launch.cli.options import OPTIONS

from accel_compat.migrate.mentions import notes_of_texts
from accel_compat.migrate.report import Note, Rewritten, is_comment, note_at

_GAP = r"(?:[ \t]|\\\r?\n)+"
_COMMAND = re.compile(
    rf"(?<![\w./$-])(?:(?P<python>python[\d.]*{_GAP}-m{_GAP})accelerate\.commands\.|accelerate(?:-|{_GAP}))"
    rf"(?P<word>launch|config|env|test|estimate-memory|merge-weights|to-fsdp2|tpu-config)(?![\w.-])"
)
#: a word of the shell; commands in it (`$(x)`) are read if nothing is quoted or nested in them
_WORD = (
    r"(?:'[^'\n]*'|\"(?:[^\"\n`$]|\$(?!\())*\"|\\[^\r\n]|\$\(\([^()'\"`\n]*\)\)"
    r"|\$\([^()'\"`\n]*\)|`[^'\"`\n]*`|[^\s'\"\\;|&#<>()`])++(?![(`])"
)
_FLAG = re.compile(rf"{_GAP}(?P<flag>-[\w-]*)(?:(?P<between>=)(?P<value>{_WORD}))?(?![^\s;|&#<>)'\"`])")
_VALUE = re.compile(rf"(?P<between>{_GAP})(?P<value>{_WORD})")
_VARIABLE = re.compile(r"(?:(?<=\$)|(?<=\$\{)|(?<![\w${]))ACCELERATE_([A-Z0-9_]+)\b")
_SIMPLE_NAME = re.compile(r"--[a-z0-9_ ]+")
_FLAGS = {
    flag: option
    for option in (*OPTIONS, *ENTRY_OPTIONS, *ACCELERATE_OPTIONS)
    for flag in (*option.opts, *option.secondary_opts)
}
#: the commands whose options differ from Accelerate's
_WITH_OPTIONS = ("launch", "config", "env", "test")
_VARIABLES = {str(option.envvar) for option in OPTIONS} | {"ACCEL_LOG_LEVEL"}


def rewrite_commands(text: str) -> Rewritten:
    """Rewrite the commands, flags and variables in a text. Comments stay."""
    notes: list[Note] = []
    out = ""
    done = 0
    for found in _COMMAND.finditer(text):
        start, end, word = found.start(), found.end(), found["word"]
        if start < done or is_comment(text, start):
            continue
        new = f"{found['python'] or ''}accel {word}"
        while word in _WITH_OPTIONS and (flag := _FLAG.match(text, end)) is not None:
            option = _FLAGS.get(flag["flag"][:2] + flag["flag"][2:].replace("-", "_"))
            alone = option is None or option.is_flag or flag["between"]
            last = flag if alone else _VALUE.match(text, flag.end())
            if last is None:
                words = f"{flag['flag']} and what follows could not be read: check these options"
                notes.append(note_at(text, flag.start("flag"), words))
                break
            same, problem = text[end : last.end()], None
            if option is None:
                problem = f"{flag['flag']} is not an option of accel: leave it out"
            elif isinstance(option, AccelerateOption):
                problem = option.problem(last["value"] or True, "accel launch")
                if _SIMPLE_NAME.fullmatch(option.renamed):
                    same, problem = same.replace(flag["flag"], option.renamed, 1), None
                elif problem is None:
                    same = ""
            if problem is not None:
                notes.append(note_at(text, flag.start("flag"), problem))
            new, end = new + same, last.end()
        out, done = out + text[done:start] + new, end

    def rename(found: re.Match[str]) -> str:
        ours = f"ACCEL_{found[1]}"
        return found[0] if is_comment(found.string, found.start()) or ours not in _VARIABLES else ours

    new = _VARIABLE.sub(rename, out + text[done:])
    return Rewritten(new, (*notes, *notes_of_texts(new, shell=True)))
