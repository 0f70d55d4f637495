"""Read and change variables of the environment, as scripts for Accelerate do."""

from __future__ import annotations

import functools
import inspect
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from accel_state.devices import choose
from accel_state.distributed_type import distributed_type
from accel_state.environ import FALSE, TRUE, change, changed, process_environ

T = TypeVar("T")

_FORBIDDEN = {*"\n;<> "}
#: variables by which a launcher and a script tell each other how to run
OURS = ("ACCEL_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """Return 1 or 0 for a word such as yes, on, false or 0.

    Args:
        value: The word.
        to_bool: Whether to return True or False instead.

    Raises:
        ValueError: For another word.
    """
    word = value.lower()
    if word not in TRUE + FALSE:
        raise ValueError(f"{value!r}: expected one of {', '.join(TRUE + FALSE)}")
    return word in TRUE if to_bool else int(word in TRUE)


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Return the first of some variables that is a number of at least 0, or the default."""
    for name in env_keys:
        number = int(process_environ().get(name, "-1"))
        if number >= 0:
            return number
    return default


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Return whether a variable says true.

    Raises:
        ValueError: For a word that is neither true nor false.
    """
    return str_to_bool(process_environ().get(key, str(default))) == 1


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Return the value of a variable."""
    return process_environ().get(key, str(default))


def convert_dict_to_env_variables(current_env: Mapping[str, Any]) -> list[str]:
    """Return entries as lines NAME=value, without those with a blank, an end of a line, a semicolon, or < or >."""
    lines = []
    for name, value in current_env.items():
        if not name or _FORBIDDEN & {*name, *str(value)} or "=" in name:
            warnings.warn(f"{name!r} is not a variable that a shell reads as it is, and is left out", stacklevel=2)
        else:
            lines.append(f"{name}={value}\n")
    return lines


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Give variables, whose names are written in capitals here, other values in a block."""
    with changed({name.upper(): str(value) for name, value in kwargs.items()}):
        yield


@contextmanager
def clear_environment() -> Iterator[None]:
    """Clear the environment in a block."""
    with changed(dict.fromkeys(process_environ())):
        yield


def purge_accelerate_environment(func_or_cls: T) -> T:
    """Restore the variables of the launcher after a function, or after each test of a class and of its heirs."""
    if inspect.isclass(func_or_cls):
        own = vars(func_or_cls).get("__init_subclass__")

        def purge(heir: type) -> None:
            for name, method in list(vars(heir).items()):
                if inspect.isfunction(method) and name.startswith("test"):
                    setattr(heir, name, _purged(method))

        def begin(heir: type, /, **more: Any) -> None:
            (own.__get__(None, heir) if own else super(func_or_cls, heir).__init_subclass__)(**more)  # type: ignore[arg-type] # it is a class here
            purge(heir)

        purge(func_or_cls)
        func_or_cls.__init_subclass__ = classmethod(begin)  # type: ignore[assignment]
        return func_or_cls
    decorated: Any = _purged(func_or_cls)  # type: ignore[arg-type] # a function, as it is no class
    return decorated  # type: ignore[no-any-return]


def _purged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = {name: word for name, word in process_environ().items() if name.startswith(OURS)}
        try:
            return function(*args, **kwargs)
        finally:
            there = [name for name in process_environ() if name.startswith(OURS)]
            change({**dict.fromkeys(there), **before})

    return run


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Return those of the libraries that are imported."""
    return [name for name in library_names if name in sys.modules]


def get_current_device_type() -> tuple[str, str]:
    """Return the `DistributedType` of several processes on the device that a run would take, and its kind."""
    kind = choose(cpu=False, environ=process_environ()).place(None).type
    return distributed_type(kind, 2).value, kind


def is_port_in_use(port: int | str | None = None) -> bool:
    """Return whether a program of this machine listens on a port, which is 29500 by default."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", int(port or 29500))) == 0
