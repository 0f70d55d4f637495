"""The messages of the program, read out of the source: `python docs/_site/messages.py` prints them.

The site shows them on the page reference/messages, which takes them in when it is built.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PAGE = "reference/messages"
PLACE = "<!-- messages -->"
#: functions that show what they are given, or raise it
SAYING = re.compile(r"(^|\.)_?(warn|warn_once|warning|error|say|refused?|_refuse|require|problems_of|not_begun|_lost)$")
#: functions that raise or keep the reason that they are given
REASONS = re.compile(r"(^|\.)(append|extend|\w*(Error|Mismatch|Run|Verify|Lost|Failed|Failure|Rewrite|Conflict|Name))$")
WORD = re.compile(r"[A-Za-z][a-z']+")


@dataclass(frozen=True, slots=True)
class Message:
    """A text that the program ends or warns with; {names} stand for what is known at run time."""

    package: str
    module: str
    line: int
    kind: str
    text: str


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the page of messages with Sphinx."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Writes the messages into the source of their page."""
    if page == PAGE:
        source[0] = source[0].replace(PLACE, markdown(messages()))


def messages(root: Path = ROOT) -> list[Message]:
    """All messages of the packages, in the order of the source."""
    paths = [path for path in sorted(root.glob("packages/*/src/**/*.py")) if "accel-testing" not in path.parts]
    return [message for path in paths for message in messages_of(path)]


def messages_of(path: Path) -> Iterator[Message]:
    """The messages of a file."""
    package = path.parts[path.parts.index("packages") + 1]
    module = ".".join(path.with_suffix("").parts[path.parts.index("src") + 1 :])
    for line, kind, text in sorted(texts(ast.parse(path.read_text(encoding="utf-8"))), key=lambda found: found[0]):
        yield Message(package, module.removesuffix(".__init__"), line, kind, text)


def texts(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each message: the name of an exception, "warning", or "reason" for a part of others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _said(node.exc, ast.unparse(node.exc.func).rpartition(".")[2].lstrip("_"))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if SAYING.search(name):
                yield from _said(node, "warning" if "warn" in name else "reason")
            elif REASONS.search(name):
                yield from _said(node, "reason")
        elif isinstance(node, ast.Return | ast.Yield | ast.AugAssign) and node.value is not None:
            yield from _said(node.value, "reason")


def _said(node: ast.expr | ast.keyword, kind: str) -> Iterator[tuple[int, str, str]]:
    """The sentences in an expression and in all that it is made of."""
    text = _text(node)
    if text is not None:
        text = " ".join(text.split())
        if len(WORD.findall(re.sub(r"\{.*?\}", "", text))) >= 3 and text.count(" ") >= 2:
            yield node.lineno, kind, text
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.keyword | ast.Starred) and not isinstance(child, ast.Lambda):
            yield from _said(child, kind)


def _text(node: ast.AST) -> str | None:
    """The text of a literal, of an f-string, or of their sum."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + name_of(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = [(side, _text(side)) for side in (left, right)]
            if any(text is not None for _, text in sides):
                return "".join(f"{{{name_of(side)}}}" if text is None else text for side, text in sides)
    return None


def name_of(value: ast.expr) -> str:
    """A word for an expression inside of a message."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Call(func=ast.Attribute(attr="join"), args=[given]):
            return f"{name_of(given)}, ..."
        case ast.Call(func=ast.Name(id="len"), args=[given]):
            return f"number of {name_of(given)}"
        case ast.Call(args=[given, *_]) | ast.Starred(value=given) | ast.Subscript(value=given):
            return name_of(given)
        case ast.Call(func=ast.Attribute(value=given)):
            return name_of(given)
    return "..."


def markdown(found: list[Message]) -> str:
    """The messages as a list for each package."""
    lines = []
    for package in dict.fromkeys(message.package for message in found):
        lines += ["", f"## Messages of {package}", ""]
        said: dict[str, Message] = {}
        for message in found:
            # the same text may be found in a list of reasons too
            if message.package == package and (message.text not in said or message.kind != "reason"):
                said[message.text] = message
        lines += [_item(said[text]) for text in sorted(said, key=_order)]
    return "\n".join(lines)


def _order(text: str) -> str:
    return re.sub(r"\{.*?\}|\W", "", text).lower()


def _item(message: Message) -> str:
    kind = "" if message.kind == "reason" else f" *{message.kind}*"
    return f"* {_code(message.text)}{kind} in `{message.module}`"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    for message in messages():
        print(f"{message.module}:{message.line}: {message.kind}: {message.text}")
