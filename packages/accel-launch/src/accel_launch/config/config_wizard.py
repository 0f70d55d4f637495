"""Ask the questions of `accel config` in their order, at a terminal: menus for arrow keys, lines with a default."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from accel_launch.cli.option_types import SWITCH, Value
from accel_launch.cli.options import BY_NAME, C10D, STATIC

if TYPE_CHECKING:
    from questionary import Question

WIDTH = 100
WHERE = "Where does it run?"
ONE, MORE = "this machine", "several machines"
PORT = 29500
NO_GPU = (
    "No GPU was found on this machine: processes will compute on the CPU (use_cpu: true in the file;"
    " remove that line if the file is for a machine with GPUs)."
)
PRECISIONS = {
    "no": "that of the model, most often float32",
    "bf16": "bfloat16 where it is safe; the usual choice on newer GPUs",
    "fp16": "float16 with a scaled loss; for GPUs without bfloat16",
    "fp8": "float8 matrix products; Ada, Hopper or newer",
}
WEIGHTS = {
    False: "whole in each process",
    True: "a part in each process (FSDP); for models that are too big for one device",
}
#: the options that questions are of
ASKED = (
    "num_machines",
    "rdzv_backend",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "cpu",
    "num_processes",
    "use_fsdp",
    "mixed_precision",
    "gradient_accumulation_steps",
)
Refusal = Callable[[Any], str | None]
#: shows a question, words about it and titles, the first of which stands at a position; gives that of the chosen title
Choose = Callable[[str, str, Sequence[str], int], int]
#: shows a question, words about it and a default; gives what was written, to which the refusal has no objection
Write = Callable[[str, str, str, Callable[[str], str | None]], str]


class ConfigWizard:
    """A wizard that asks for options and keeps the answers.

    Args:
        choose: Shows a question with titles, and returns the position of the chosen title.
        write: Shows a question with a default, and returns the text that was written.
        before: Values to offer first, if they fit.
    """

    def __init__(self, choose: Choose, write: Write, before: Mapping[str, Any]) -> None:
        self.answers: dict[str, Any] = {}
        self._choose, self._write, self._before = choose, write, before

    def ask(
        self,
        name: str,
        text: str,
        default: Value | None = None,
        *,
        refusal: Refusal = lambda value: None,
        words: Mapping[Any, str] | None = None,
    ) -> Any:
        """Ask for the value of an option.

        Args:
            name: Name of the option.
            text: The question.
            default: Value to offer, if there is no value from before.
            refusal: Returns why a value is refused, or None.
            words: Values to choose from, each with an explanation. Default: a text that the option reads.
        """
        option = BY_NAME[name]
        about = option.about.partition(" Default")[0]
        if name in self._before and refusal(self._before[name]) is None:
            default = self._before[name]

        def problem(word: str) -> str | None:
            try:
                return refusal(option.read(word.strip()))
            except click.BadParameter as error:
                return error.message

        if words is None:
            word = self._write(text, about, "" if default is None else str(default), problem)
            answer = option.read(word.strip())
        else:
            offered = [value for value in words if refusal(value) is None]
            titles = [words[value] if option.type is SWITCH else f"{value}: {words[value]}" for value in offered]
            first = offered.index(default) if default in offered else 0
            answer = offered[self._choose(text, about, titles, first)]
        self.answers[name] = answer
        return answer


def ask_settings(
    choose: Choose, write: Write, gpus: Sequence[str], host: str, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Ask all questions, and return the settings by name.

    Args:
        choose: Shows a question with titles, and returns the position of the chosen title.
        write: Shows a question with a default, and returns the text that was written.
        gpus: Names of the GPUs of this machine.
        host: Name of this machine.
        before: Values to offer first. They are kept if no question asks for them.
    """
    wizard = ConfigWizard(choose, write, before)
    about = "accel launch starts the processes of one machine; with several it is run on each of them."
    several = choose(WHERE, about, (ONE, MORE), before.get("num_machines", 1) > 1) == 1
    machines = _ask_machines(wizard, host) if several else 1
    if gpus:
        cpu = wizard.ask("cpu", "Compute on GPUs or on the CPU?", False, words={False: "GPUs", True: "CPU"})
    else:
        print(textwrap.fill(NO_GPU, WIDTH), flush=True)
        cpu = wizard.answers["cpu"] = True

    def too_many(count: int) -> str | None:
        if count % machines:
            return f"each of the {machines} machines starts as many: expected a multiple of {machines}"
        if not cpu and count > machines * len(gpus):
            return (
                f"each process has a GPU of its own, and this machine has {len(gpus)}: expected"
                f" {len(gpus) * machines} or fewer"
            )
        return None

    count = wizard.ask("num_processes", "How many processes?", machines * (1 if cpu else len(gpus)), refusal=too_many)
    if count > 1:
        wizard.ask("use_fsdp", "Where do the weights lie?", False, words=WEIGHTS)

    def needs_gpu(precision: str) -> str | None:
        return "needs a GPU" if precision == "fp8" and cpu else None

    wizard.ask("mixed_precision", "Which precision?", "no", refusal=needs_gpu, words=PRECISIONS)
    wizard.ask("gradient_accumulation_steps", "How many batches for each step of the optimizer?", 1)
    kept = {name: value for name, value in before.items() if name not in ASKED}
    if cpu or len(str(kept.get("gpu_ids")).split(",")) < count // machines:
        kept.pop("gpu_ids", None)
    return {**kept, **wizard.answers}


def _ask_machines(wizard: ConfigWizard, host: str) -> int:
    """Return how many machines there are. How they meet is among the answers."""

    def too_few(count: int) -> str | None:
        return "expected 2 or more" if count < 2 else None

    def not_known(port: int) -> str | None:
        return "machines must know it: expected 1 to 65535" if port == 0 else None

    count: int = wizard.ask("num_machines", "How many machines?", 2, refusal=too_few)

    def too_high(rank: int) -> str | None:
        return f"expected 0 to {count - 1}" if rank >= count else None

    ways = {STATIC: "each has a number that you give it", C10D: "they number themselves, and may be replaced"}
    rank = None
    if wizard.ask("rdzv_backend", "How do the machines meet?", STATIC, words=ways) == STATIC:
        rank = wizard.ask(
            "machine_rank", "Which of them is this one? Answer differently on each machine, from 0", 0, refusal=too_high
        )
    wizard.ask("main_process_ip", "The name or address of the machine where all meet?", host if rank == 0 else None)
    wizard.ask("main_process_port", "The port there?", PORT, refusal=not_known)
    return count


def choose_at_terminal(text: str, about: str, titles: Sequence[str], first: int) -> int:
    """Return the position of the title that was chosen with the arrow keys.

    Args:
        text: The question.
        about: Words about it.
        titles: Titles to choose from.
        first: Position of the title to begin at.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C, or the terminal has ended.
    """
    from questionary import select

    hint = "(arrow keys, then Enter)"
    return titles.index(_ask(about, select(text, choices=[*titles], default=titles[first], instruction=hint)))


def write_at_terminal(text: str, about: str, default: str, problem: Callable[[str], str | None]) -> str:
    """Return the line that was written, or the default for an empty line.

    Args:
        text: The question.
        about: Words about it.
        default: Text to return for an empty line.
        problem: Returns why a text is refused, or None. The user may then change it.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C, or the terminal has ended.
    """
    from questionary import text as line

    # The default is no text of the field: what is typed takes its place, and is not appended to it.
    shown = f"{text} ({default})" if default else text
    word = _ask(about, line(shown, validate=lambda word: problem(word.strip() or default) or True))
    return word.strip() or default


def _ask(about: str, question: Question) -> str:
    print(textwrap.fill(about, WIDTH, initial_indent="\n"), flush=True)
    try:
        return str(question.unsafe_ask())
    except EOFError:
        raise KeyboardInterrupt from None
