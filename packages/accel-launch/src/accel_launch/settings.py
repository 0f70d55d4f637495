"""Which value of each launch option wins: flag, then environment variable, then config file, then default."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from accel_state.environ import (
    ATTEMPT,
    HOME,
    JOBS,
    JOURNAL,
    LOG_LEVEL,
    MAILBOX,
    PREFIX,
    STORE_FD,
    STORE_PORT,
    WATCH,
)

from accel_launch.kinds import COUNT, Value
from accel_launch.nearest import nearest
from accel_launch.options import BY_NAME, OPTIONS

T = TypeVar("T", bool, int, str)

STATIC, C10D = "static", "c10d"
#: seconds that machines wait for each other, where nothing is said
JOIN_TIMEOUT_S = 300

#: what accel reads besides the options' variables
_OTHER_VARIABLES = (
    STORE_PORT,
    STORE_FD,
    JOBS,
    JOURNAL,
    ATTEMPT,
    LOG_LEVEL,
    MAILBOX,
    WATCH,
    HOME,
    "ACCEL_TESTING_STORE",
)


class Origin(Enum):
    """Where a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "config file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value that won, and where it came from; None: nobody said anything."""

    value: Value | None
    origin: Origin


NOT_SAID = Resolved(None, Origin.DEFAULT)


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """Every launch option with its value; `origins` tells where each came from."""

    num_processes: int | None
    cpu: bool
    gpu_ids: str | None
    mixed_precision: str | None
    gradient_accumulation_steps: int | None
    num_cpu_threads_per_process: int | None
    enable_cpu_affinity: bool
    num_machines: int | None
    machine_rank: int | None
    main_process_ip: str | None
    main_process_port: int | None
    rdzv_backend: str
    join_timeout: int
    log_dir: str | None
    tee: str
    grace_period: int | None
    max_restarts: int
    explain: bool
    dry_run: bool
    submit: str | None
    submit_options: str | None
    submit_file: str | None
    module: bool
    no_python: bool
    origins: Mapping[str, Origin]

    def said(self, name: str) -> bool:
        """Whether anybody set the option: a flag, a variable or a file."""
        return self.origins[name] is not Origin.DEFAULT


def read_variables(environ: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    """The option values in an environment, and every variable whose value cannot be meant; empty is not set."""
    values: dict[str, Value] = {}
    problems: list[str] = []
    for option in OPTIONS:
        word = environ.get(option.variable, "").strip() if option.variable is not None else ""
        if not word:
            continue
        value = option.kind.read(word)
        if value is None:
            problems.append(f"{option.variable}={word!r} in the environment: expected {option.kind.expected}")
        else:
            values[option.name] = value
    return values, [*problems, *_misspelt(environ)]


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """A variable that is nearly one of accel's; what follows ACCEL_ is compared, since others use that name as well."""
    variables = {option.name.upper(): option.variable for option in OPTIONS if option.variable is not None}
    names = (*_OTHER_VARIABLES, *variables.values())
    known = {**variables, **{name.removeprefix(PREFIX): name for name in names}}
    for name, word in environ.items():
        if name.startswith(PREFIX) and name not in names and word.strip():
            near = nearest(name.removeprefix(PREFIX), known, likeness=0.8)
            if near is not None:
                meant = known[near]
                yield f"{name} in the environment is no variable of accel; did you mean {meant}? If not, unset it"


def of_accelerate(environ: Mapping[str, str], flags: Collection[str]) -> Iterator[str]:
    """A variable of Accelerate's that asks for something, where neither accel's own one nor a flag says what holds."""
    for option in OPTIONS:
        if option.variable is None or environ.get(option.variable) or option.name in flags:
            continue
        name = f"ACCELERATE_{option.variable.removeprefix(PREFIX)}"
        word = environ.get(name, "").strip()
        if word.lower() not in ("", "no", "false", "0", "1" if option.kind is COUNT else "no"):
            yield f"{name}={word!r} in the environment sets nothing here: set {option.variable}, or unset it"


def resolve(
    flags: Mapping[str, Value], variables: Mapping[str, Value], file: Mapping[str, Value]
) -> dict[str, Resolved]:
    """The winner for each option."""
    sources = ((Origin.FLAG, flags), (Origin.ENVIRONMENT, variables), (Origin.FILE, file))
    return {
        name: next((Resolved(values[name], origin) for origin, values in sources if name in values), NOT_SAID)
        for name in BY_NAME
        if BY_NAME[name].stands_for is None
    }


def launch_settings(resolved: Mapping[str, Resolved]) -> LaunchSettings:
    """The winners, typed."""
    return LaunchSettings(
        num_processes=_typed(resolved, "num_processes", int),
        cpu=_typed(resolved, "cpu", bool) or False,
        gpu_ids=_typed(resolved, "gpu_ids", str),
        mixed_precision=_typed(resolved, "mixed_precision", str),
        gradient_accumulation_steps=_typed(resolved, "gradient_accumulation_steps", int),
        num_cpu_threads_per_process=_typed(resolved, "num_cpu_threads_per_process", int),
        enable_cpu_affinity=_typed(resolved, "enable_cpu_affinity", bool) or False,
        num_machines=_typed(resolved, "num_machines", int),
        machine_rank=_typed(resolved, "machine_rank", int),
        main_process_ip=_typed(resolved, "main_process_ip", str),
        main_process_port=_typed(resolved, "main_process_port", int),
        rdzv_backend=_typed(resolved, "rdzv_backend", str) or STATIC,
        join_timeout=_typed(resolved, "join_timeout", int) or JOIN_TIMEOUT_S,
        log_dir=_typed(resolved, "log_dir", str),
        tee=_typed(resolved, "tee", str) or "3",
        grace_period=_typed(resolved, "grace_period", int),
        max_restarts=_typed(resolved, "max_restarts", int) or 0,
        explain=_typed(resolved, "explain", bool) or False,
        dry_run=_typed(resolved, "dry_run", bool) or False,
        submit=_typed(resolved, "submit", str),
        submit_options=_typed(resolved, "submit_options", str),
        submit_file=_typed(resolved, "submit_file", str),
        module=_typed(resolved, "module", bool) or False,
        no_python=_typed(resolved, "no_python", bool) or False,
        origins={name: each.origin for name, each in resolved.items()},
    )


def _typed(resolved: Mapping[str, Resolved], name: str, kind: type[T]) -> T | None:
    value = resolved[name].value
    if value is None:
        return None
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}: expected {kind.__name__}")
    return value
