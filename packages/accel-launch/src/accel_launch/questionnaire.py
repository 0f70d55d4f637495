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


def _ask(prompt: "Prompt") -> str:
    try:
        return str(prompt.unsafe_ask())
    except EOFError:
        raise KeyboardInterrupt from None
