"""Says where a file is not YAML or not JSON: line, column, what was expected, what was found, and the line itself."""

import re
from json import JSONDecodeError

from yaml import MarkedYAMLError, SafeLoader, ScalarEvent, YAMLError, parse
from yaml.reader import ReaderError

_EXPECTED = re.compile(r"(?:.*\b)?expected (?P<expected>.+?),? but (?:found|got) (?P<found>.+)")
_BAD_START = re.compile(r"found character (?P<found>.+) that cannot start any token")
_ALIAS = re.compile(r"found undefined alias (?P<found>.+)")
_TAG = re.compile(r"could not determine a constructor for the tag (?P<found>.+)")
_UNSPACED = re.compile(r"(?P<name>\w+):(?P<value>[^\s:/].*)")
_OCTAL = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?")
_PAIR = re.compile(r":(\s|$)")

# The parser's names for what no file shows.
_NAMES = {
    "<block end>": "a line that begins in the same column as those above it",
    "'<block mapping start>'": "a line that begins in another column",
    "'<block sequence start>'": "a list",
    "'<stream end>'": "the end of the file",
    "'<document start>'": "the end of the file",
    "'<scalar>'": "a value",
    "the node content": "a value",
    "'?'": "a name",
    "'-'": "an entry of a list",
}


def yaml_words(error: YAMLError | ValueError, text: str) -> str:
    """What is wrong in a text that is not YAML, in one line."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        column = error.position - (before.rfind("\n") + 1) + 1
        found = f"the character {chr(int(error.character))!r}"
        return _place(text, before.count("\n") + 1, column, "characters that can be printed", found)
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return f"a value cannot be read: {' '.join(str(error).split())}"
    line, column = error.problem_mark.line + 1, error.problem_mark.column + 1
    problem = error.problem or ""
    if problem.startswith("mapping values are not allowed"):
        return _no_pair(text, line, column)
    if problem.startswith("could not find expected ':'") and error.context_mark is not None:
        return _bare(text, error.context_mark.line + 1)
    if matched := _BAD_START.fullmatch(problem):
        if matched["found"] == r"'\t'":
            before = text.splitlines()[line - 1][: column - 1]
            return _place(
                text, line, column, "spaces", f"a tab, which cannot {'stand there' if before.strip() else 'indent'}"
            )
        return _place(text, line, column, f"a value, in quotes if it begins with {matched['found']}", matched["found"])
    if matched := _ALIAS.fullmatch(problem):
        return _place(text, line, column, "a value, in quotes if it begins with *", f"*{matched['found'][1:-1]}")
    if matched := _TAG.fullmatch(problem):
        return _place(text, line, column, "a plain value", f"the tag {matched['found']}")
    if problem == "but found another document":
        return _place(text, line, column, "one list of names and values", "the beginning of a second one")
    if problem == "found unexpected end of stream" and error.context_mark is not None:
        opened = error.context_mark
        quote = f"the quote that closes the one in line {opened.line + 1}, column {opened.column + 1}"
        return _place(text, opened.line + 1, opened.column + 1, quote, "the end of the file")
    if matched := _EXPECTED.fullmatch(problem):
        expected, seen = (_NAMES.get(matched[which], matched[which]) for which in ("expected", "found"))
        return _place(text, line, column, expected, seen)
    return _place(text, line, column, "name: value", problem.removeprefix("found "))


def bare_words(text: str) -> str | None:
    """What is wrong in a text that is one value; None where no line of it looks like a name and a value."""
    bare = [number for number, line in enumerate(text.splitlines(), 1) if _UNSPACED.match(line.strip())]
    return _bare(text, bare[0]) if bare else None


def octal_words(text: str) -> list[str]:
    """Each number with a leading zero in a text that is YAML, which takes 010 for 8, and 08 for a text."""
    expected = "a number without a leading zero, or a text in quotes"
    return [
        _place(text, mark.line + 1, mark.column + 1, expected, event.value)
        for event in parse(text, SafeLoader)
        if isinstance(event, ScalarEvent) and event.style is None and _OCTAL.fullmatch(event.value)
        if (mark := event.start_mark) is not None
    ]


def json_words(error: JSONDecodeError, text: str) -> str:
    """What is wrong in a text that is not JSON, in one line."""
    found = repr(text[error.pos]) if error.pos < len(text) else "the end of the file"
    expected = error.msg.removeprefix("Expecting ") if error.msg.startswith("Expecting") else f"JSON ({error.msg})"
    return _place(text, error.lineno, error.colno, expected, found)


def _no_pair(text: str, line: int, column: int) -> str:
    """A second colon in a line; or, where the lines above have none, the first of those: YAML reads on from there."""
    lines = text.splitlines()
    first = line
    while first > 1 and _is_bare(lines[first - 2]):
        first -= 1
    if first == line:
        found = "a second ':' where the value has not ended"
        return _place(text, line, column, "one name: value on a line, each in the same column", found)
    return _bare(text, first)


def _bare(text: str, line: int) -> str:
    whole = text.splitlines()[line - 1]
    column = len(whole) - len(whole.lstrip()) + 1
    pair = _UNSPACED.match(whole.strip())
    missing = f"; the space is missing: write {pair['name']}: {pair['value']}" if pair is not None else ""
    found = f"found {whole.strip()!r}{missing}"
    return f"line {line}, column {column}: expected name: value, with a space after the colon, {found}"


def _is_bare(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith(("#", "-")) and _PAIR.search(stripped) is None


def _place(text: str, line: int, column: int, expected: str, found: str) -> str:
    lines = text.splitlines()
    shown = f"; the line is {lines[line - 1]!r}" if line <= len(lines) else ""
    return f"line {line}, column {column}: expected {expected}, found {found}{shown}"
