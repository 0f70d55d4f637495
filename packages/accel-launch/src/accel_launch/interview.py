"""Asks the questions of `accel config` in their order: later ones depend on earlier answers. Knows no terminal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from accel_launch.kinds import Value
from accel_launch.options import BY_NAME
from accel_launch.questions import QUESTIONS, Answers, Here, Question, choices

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
    kind, about = BY_NAME[name].kind, BY_NAME[name].help.partition(" Default")[0]
    fits = before is not None and question.refusal(before, answers, here) is None
    default = before if fits else question.default(answers, here)
    offered = [each for each in choices(name) if question.refusal(each, answers, here) is None]
    if offered:
        titles = [_title(each, question.words.get(each), kind.takes_value) for each in offered]
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
