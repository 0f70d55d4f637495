"""Puts the questions of `accel config` on a terminal: menus for the arrow keys, and lines with a default."""

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from accel_launch.interview import interview
from accel_launch.kinds import Value
from accel_launch.questions import Here

if TYPE_CHECKING:
    from questionary import Question as Prompt

WIDTH = 100


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
        """The line that was written; one that has a problem is not taken, and the problem is shown below it."""
        from questionary import text as line

        self.tell(f"\n{about}")
        return _ask(line(text, default=default, validate=lambda word: problem(word) or True))


def ask_all(here: Here, before: Mapping[str, Value]) -> dict[str, Value]:
    """Every setting that the answers at this terminal make.

    Raises: KeyboardInterrupt if the user ends it; nothing has been written then, which is said.
    """
    try:
        return interview(TerminalAsker(), here, before)
    except KeyboardInterrupt:
        print("accel config: ended by the user; nothing was written", file=sys.stderr, flush=True)
        raise


def _ask(prompt: "Prompt") -> str:
    try:
        return str(prompt.unsafe_ask())
    except EOFError:
        raise KeyboardInterrupt from None
