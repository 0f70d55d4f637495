"""The settings of a launch, each with where it came from: flag, environment variable, config file or default."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from accel_state.environ import (
    ATTEMPT,
    FLIGHT_RECORDER,
    HOME,
    JOBS,
    LOG_LEVEL,
    PREFIX,
    SHARED_MEMORY,
    STORE_FD,
    STORE_PORT,
    WATCHDOG,
)

from accel_launch.cli.option_types import COUNT, Value
from accel_launch.cli.options import BY_NAME, OPTIONS
from accel_launch.cli.suggest import nearest

STATIC, C10D = "static", "c10d"
#: what accel reads besides the variables of options
_OTHER_VARIABLES = (
    *(STORE_PORT, STORE_FD, JOBS, FLIGHT_RECORDER, ATTEMPT, LOG_LEVEL, SHARED_MEMORY, WATCHDOG, HOME),
    "ACCEL_TESTING_STORE",
)


class Origin(Enum):
    """Where a value came from."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "config file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """Every launch option with its value; `origins` tells where each came from that anybody has set."""

    num_processes: int | None = None
    cpu: bool = False
    gpu_ids: str | None = None
    mixed_precision: str | None = None
    gradient_accumulation_steps: int | None = None
    num_cpu_threads_per_process: int | None = None
    enable_cpu_affinity: bool = False
    num_machines: int | None = None
    machine_rank: int | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str = STATIC
    join_timeout: int = 300
    log_dir: str | None = None
    tee: str = "3"
    grace_period: int | None = None
    max_restarts: int = 0
    config_file: str | None = None
    explain: bool = False
    dry_run: bool = False
    submit: str | None = None
    submit_options: str | None = None
    submit_file: str | None = None
    module: bool = False
    no_python: bool = False
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, object], origins: Mapping[str, Origin]) -> LaunchSettings:
        """The settings with the values that anybody has set, whose types the options have checked."""
        return cls(**{name: values[name] for name in origins}, origins=origins)  # type: ignore[arg-type] # options were checked by type

    def said(self, name: str) -> bool:
        """Whether anybody set the option: a flag, a variable or a file."""
        return name in self.origins

    def origin(self, name: str) -> Origin:
        """Where the value of an option came from."""
        return self.origins.get(name, Origin.DEFAULT)


def launch_words(settings: LaunchSettings, without: Collection[str] = ()) -> list[str]:
    """The flags that say what anybody said, of options other than `without`."""
    said = [name for name in BY_NAME if settings.said(name) and name not in without]
    return [word for name in said for word in option_words(name, getattr(settings, name))]


def option_words(name: str, value: object) -> list[str]:
    """The flag that gives an option a value."""
    return BY_NAME[name].words(value)


def variable_problems(environ: Mapping[str, str], flags: Collection[str]) -> Iterator[str]:
    """Variables that set nothing: nearly one of accel's, or Accelerate's; `flags` are the options given as flags."""
    yield from _misspelt(environ)
    for option in OPTIONS:
        if not option.envvar or environ.get(str(option.envvar)) or option.name in flags:
            continue
        name = f"ACCELERATE_{str(option.envvar).removeprefix(PREFIX)}"
        word = environ.get(name, "").strip()
        if word.lower() not in ("", "no", "false", "0", "1" if option.kind is COUNT else "no"):
            yield f"{name}={word!r} in the environment sets nothing here: set {option.envvar}, or unset it"


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """A variable that is nearly one of accel's; what follows ACCEL_ is compared, since others use that name as well."""
    variables = {str(option.name).upper(): str(option.envvar) for option in OPTIONS if option.envvar}
    names = (*_OTHER_VARIABLES, *variables.values())
    known = {**variables, **{name.removeprefix(PREFIX): name for name in names}}
    for name, word in environ.items():
        if name.startswith(PREFIX) and name not in names and word.strip():
            near = nearest(name.removeprefix(PREFIX), known, likeness=0.8)
            if near is not None:
                meant = known[near]
                yield f"{name} in the environment is no variable of accel; did you mean {meant}? If not, unset it"


def join_pairs(parts: Collection[str]) -> Value:
    """The pairs of a repeated option: all of them, and of a name that is in several those that came last."""
    joined = ""
    for part in parts:
        again = {entry.partition("=")[0] for entry in part.split(",")}
        kept = [entry for entry in joined.split(",") if entry and entry.partition("=")[0] not in again]
        joined = ",".join([*kept, part])
    return joined
