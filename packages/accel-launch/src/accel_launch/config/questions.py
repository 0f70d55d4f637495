"""The questions of `accel config`: for each option asked for, its words, when it is asked, and what is refused."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from accel_launch.cli.option_types import SWITCH, Value
from accel_launch.cli.options import BY_NAME
from accel_launch.config.settings import C10D, STATIC
from accel_launch.job.plan import HostInfo

PORT = 29500

Answers = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Here:
    """What is known before the first question: this machine, the GPUs by name, and whether there are more machines."""

    machine: HostInfo
    gpus: tuple[str, ...]
    host: str
    several: bool = False

    @staticmethod
    def of(machine: HostInfo, environ: Mapping[str, str]) -> Here:
        """What this machine and an environment tell."""
        visible = environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(machine.accelerators))))
        gpus = tuple(each.strip() for each in visible.split(",")[: machine.accelerators])
        return Here(machine, gpus, socket.gethostname())


@dataclass(frozen=True, slots=True)
class Question:
    """One question; its kind and what it means come from the option of the same name.

    `words` says for each choice of an option that has choices what it means. `refusal` sees the answers before it.
    """

    text: str
    default: Callable[[Answers, Here], Value | None]
    asked: Callable[[Answers, Here], bool] = lambda answers, here: True
    refusal: Callable[[Value, Answers, Here], str | None] = lambda value, answers, here: None
    words: Mapping[Value, str] = field(default_factory=dict)


def _always(value: Value) -> Callable[[Answers, Here], Value]:
    return lambda answers, here: value


def _machines(answers: Answers) -> int:
    return int(answers.get("num_machines", 1))


def _each(answers: Answers) -> int:
    """Processes of one machine."""
    return int(answers.get("num_processes", 1)) // _machines(answers)


def _num_processes(answers: Answers, here: Here) -> int:
    return _machines(answers) * (1 if answers["cpu"] else here.machine.accelerators)


def _too_many_processes(value: Value, answers: Answers, here: Here) -> str | None:
    machines, found = _machines(answers), here.machine.accelerators
    if int(value) % machines:
        return f"each of the {machines} machines starts as many: expected a multiple of {machines}"
    if not answers["cpu"] and int(value) // machines > found:
        return f"each process has a GPU of its own, and this machine has {found}: expected {found * machines} or fewer"
    return None


def _first_gpus(answers: Answers, here: Here) -> str:
    return ",".join(here.gpus[: _each(answers)])


def _wrong_gpus(value: Value, answers: Answers, here: Here) -> str | None:
    if value == "all":
        return None
    chosen = str(value).split(",")
    numbered = all(name.isdecimal() for name in here.gpus)
    unknown = [name for name in chosen if numbered and name.isdecimal() and name not in here.gpus]
    if unknown:
        return f"there is no GPU {', '.join(unknown)}: expected some of {', '.join(here.gpus)}"
    if len(chosen) < _each(answers):
        return f"each process has a GPU of its own: expected at least {_each(answers)}, found {len(chosen)}"
    return None


def _several(answers: Answers, here: Here) -> bool:
    return here.several


def _own_name(answers: Answers, here: Here) -> str | None:
    return here.host if answers.get("machine_rank") == 0 else None


QUESTIONS: dict[str, Question] = {
    "num_machines": Question(
        text="How many machines?",
        default=_always(2),
        asked=_several,
        refusal=lambda value, answers, here: "expected 2 or more" if int(value) < 2 else None,
    ),
    "rdzv_backend": Question(
        text="How do the machines meet?",
        default=_always(STATIC),
        asked=_several,
        words={STATIC: "each has a number that you give it", C10D: "they number themselves, and may be replaced"},
    ),
    "machine_rank": Question(
        text="Which of them is this one? Answer differently on each machine, from 0",
        default=_always(0),
        asked=lambda answers, here: here.several and answers["rdzv_backend"] == STATIC,
        refusal=lambda value, answers, here: (
            f"expected 0 to {_machines(answers) - 1}" if int(value) >= _machines(answers) else None
        ),
    ),
    "main_process_ip": Question(
        text="The name or address of the machine where all meet?",
        default=_own_name,
        asked=_several,
    ),
    "main_process_port": Question(
        text="The port there?",
        default=_always(PORT),
        asked=_several,
        refusal=lambda value, answers, here: "machines must know it: expected 1 to 65535" if value == 0 else None,
    ),
    "cpu": Question(
        text="Compute on GPUs or on the CPU?",
        default=_always(False),
        asked=lambda answers, here: here.machine.accelerators > 0,
        words={False: "GPUs", True: "CPU"},
    ),
    "num_processes": Question(
        text="How many processes?",
        default=_num_processes,
        refusal=_too_many_processes,
    ),
    "gpu_ids": Question(
        text="Which GPUs?",
        default=_first_gpus,
        asked=lambda answers, here: not answers["cpu"] and _each(answers) < here.machine.accelerators,
        refusal=_wrong_gpus,
    ),
    "mixed_precision": Question(
        text="Which precision?",
        default=_always("no"),
        refusal=lambda value, answers, here: "needs a GPU" if value == "fp8" and answers["cpu"] else None,
        words={
            "no": "that of the model, most often float32",
            "bf16": "bfloat16 where it is safe; the usual choice on newer GPUs",
            "fp16": "float16 with a scaled loss; for GPUs without bfloat16",
            "fp8": "float8 matrix products; Ada, Hopper or newer",
        },
    ),
    "gradient_accumulation_steps": Question(
        text="How many batches for each step of the optimizer?",
        default=_always(1),
    ),
    "max_restarts": Question(
        text="How many restarts after a failure?",
        default=_always(0),
    ),
}


def choices(name: str) -> tuple[Value, ...]:
    """Everything that an option may be, if it is one of a few; else nothing."""
    kind = BY_NAME[name].kind
    return (False, True) if kind is SWITCH else kind.words
