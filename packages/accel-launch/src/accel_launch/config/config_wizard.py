"""Asks the questions of `accel config` in their order, at a terminal: menus for arrow keys, lines with a default."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from accel_launch.cli.option_types import SWITCH, Value
from accel_launch.cli.options import BY_NAME
from accel_launch.config.questions import QUESTIONS, Answers, Here, Question, choices

if TYPE_CHECKING:
    from questionary import Question as Prompt

WIDTH = 100
WHERE = "Where does it run?"
ONE, MORE = "this machine", "several machines"
NO_GPU = (
    "No GPU was found on this machine: processes will compute on the CPU (use_cpu: true in the file;"
    " remove that line if the file is for a machine with GPUs)."
)


class Asker(Protocol):
    """Whoever puts questions and brings answers."""

    def tell(self, text: str) -> None:
        """Says something that needs no answer."""
        ...

    def choose(self, text: str, about: str, titles: Sequence[str], default: int) -> int:
        """The position of the title that was chosen."""
        ...

    def write(self, text: str, about: str, default: str, problem: Callable[[str], str | None]) -> str:
        """The words that were written, or the default for none; `problem` has no objection to them."""
        ...


def interview(asker: Asker, here: Here, before: Mapping[str, Value]) -> dict[str, Value]:
    """Every setting that the answers make: what `before` says is offered first, and kept where nothing asks for it."""
    about = "accel launch starts the processes of one machine; with several it is run on each of them."
    several = asker.choose(WHERE, about, (ONE, MORE), int(int(before.get("num_machines", 1)) > 1)) == 1
    here = replace(here, several=several)
    answers: dict[str, Value] = {}
    for name, question in QUESTIONS.items():
        if question.asked(answers, here):
            answers[name] = _answer(asker, name, question, answers, here, before.get(name))
        elif name == "cpu":
            asker.tell(NO_GPU)
            answers[name] = True
    kept = {name: value for name, value in before.items() if name not in QUESTIONS}
    return {**kept, **answers}


def _answer(asker: Asker, name: str, question: Question, answers: Answers, here: Here, before: Value | None) -> Value:
    # What nobody's answer would mean is no matter of the file: the question brings its own suggestion.
    kind, about = BY_NAME[name].kind, BY_NAME[name].about.partition(" Default")[0]
    fits = before is not None and question.refusal(before, answers, here) is None
    default = before if fits else question.default(answers, here)
    offered = [each for each in choices(name) if question.refusal(each, answers, here) is None]
    if offered:
        titles = [_title(each, question.words.get(each), kind is not SWITCH) for each in offered]
        return offered[asker.choose(question.text, about, titles, offered.index(default) if default in offered else 0)]

    def problem(word: str) -> str | None:
        value = kind.read(word.strip())
        return f"expected {kind.expected}" if value is None else question.refusal(value, answers, here)

    word = asker.write(question.text, about, "" if default is None else str(default), problem)
    value = kind.read(word.strip())
    if value is None:
        raise ValueError(f"{name}: an asker brought {word!r}: expected {kind.expected}")
    return value


def _title(value: Value, words: str | None, named: bool) -> str:
    """A switch shows its words only; any other choice its own name, and the words beside."""
    return f"{value}: {words}" if named and words else words or str(value)


class TerminalAsker:
    """Asks at the terminal of this process.

    Raises: KeyboardInterrupt for Ctrl-C, and where the terminal ends.
    """

    def tell(self, text: str) -> None:
        """Prints a text."""
        print(textwrap.fill(text, WIDTH), flush=True)

    def choose(self, text: str, about: str, titles: Sequence[str], default: int) -> int:
        """The position of the title that was chosen with the arrow keys."""
        from questionary import Choice, select

        self.tell(f"\n{about}")
        menu = [Choice(title=title, value=str(position)) for position, title in enumerate(titles)]
        return int(_ask(select(text, choices=menu, default=str(default), instruction="(arrow keys, then Enter)")))

    def write(self, text: str, about: str, default: str, problem: Callable[[str], str | None]) -> str:
        """The line that was written, or the default for an empty one; what has a problem is not taken, and is told."""
        from questionary import text as line

        self.tell(f"\n{about}")
        # The default is no text of the field: what is typed takes its place, and is not appended to it.
        asked = f"{text} ({default})" if default else text
        word = _ask(line(asked, validate=lambda word: problem(word.strip() or default) or True))
        return word.strip() or default


def ask_all(here: Here, before: Mapping[str, Value]) -> dict[str, Value]:
    """Every setting that the answers at this terminal make.

    Raises: KeyboardInterrupt if the user ends it; nothing has been written then, which is said.
    """
    try:
        return interview(TerminalAsker(), here, before)
    except KeyboardInterrupt:
        print("accel config: ended by the user; nothing was written", file=sys.stderr, flush=True)
        raise


def _ask(prompt: Prompt) -> str:
    try:
        return str(prompt.unsafe_ask())
    except EOFError:
        raise KeyboardInterrupt from None
