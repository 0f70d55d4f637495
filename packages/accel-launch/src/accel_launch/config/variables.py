"""Find variables of the environment that set nothing, and were perhaps meant to."""

from collections.abc import Iterator, Mapping

from accel_state.environ import (
    ATTEMPT,
    FLIGHT_RECORDER,
    HOME,
    JOBS,
    LOG_LEVEL,
    MEMORY_CHECKPOINTS,
    PREFIX,
    SHARED_MEMORY,
    STORE_FD,
    STORE_PORT,
    WATCHDOG,
)

from accel_launch.cli.option_types import COUNT
from accel_launch.cli.options import OPTIONS, LaunchSettings
from accel_launch.cli.suggest import suggest

#: what accel reads besides the variables of options
_OTHER_VARIABLES = (
    STORE_PORT,
    STORE_FD,
    JOBS,
    FLIGHT_RECORDER,
    ATTEMPT,
    MEMORY_CHECKPOINTS,
    LOG_LEVEL,
    SHARED_MEMORY,
    WATCHDOG,
    HOME,
    "ACCEL_TESTING_STORE",
    "ACCEL_TESTING_TIME_FACTOR",
)


def variable_problems(environ: Mapping[str, str], settings: LaunchSettings) -> Iterator[str]:
    """Yield problems of variables: nearly a name of accel's, or Accelerate's name for an option that is not set."""
    yield from _misspelt(environ)
    for option in OPTIONS:
        if not option.envvar or environ.get(option.envvar) or settings.is_flag(option.name):
            continue
        name = f"ACCELERATE_{option.envvar.removeprefix(PREFIX)}"
        word = environ.get(name, "").strip()
        if word.lower() not in ("", "no", "false", "0", "1" if option.type is COUNT else "no"):
            yield f"{name}={word!r} in the environment sets nothing here: set {option.envvar}, or unset it"


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield variables that are nearly a name of accel's after `ACCEL_`, which other programs use too."""
    variables = {option.name.upper(): option.envvar for option in OPTIONS if option.envvar}
    names = (*_OTHER_VARIABLES, *variables.values())
    known = {**variables, **{name.removeprefix(PREFIX): name for name in names}}
    for name, word in environ.items():
        if name.startswith(PREFIX) and name not in names and word.strip():
            near = suggest(name.removeprefix(PREFIX), known, likeness=0.8)
            if near is not None:
                meant = known[near]
                yield f"{name} in the environment is not a variable of accel; did you mean {meant}? If not, unset it"
