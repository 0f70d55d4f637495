"""Runs a function again with a smaller batch size, on all processes, when one of them is out of memory."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import torch
from accel_state import PeerFailed, current, is_initialized
from accel_state.devices import choose

P = ParamSpec("P")
R = TypeVar("R")

#: what a batch size is multiplied by after a try that was out of memory
SHRINK = 0.9
# RuntimeErrors that say so only in words. cuDNN calls a plan that does not fit "not supported".
OUT_OF_MEMORY = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "CUDNN_STATUS_NOT_SUPPORTED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",
)


@dataclass(frozen=True, slots=True)
class _Report:
    """How one process's try went."""

    batch_size: int
    how: Literal["well", "out of memory", "failed"]
    error: str = ""


@overload
def find_executable_batch_size(
    function: Callable[Concatenate[int, P], R], starting_batch_size: int = 128
) -> Callable[P, R]: ...
@overload
def find_executable_batch_size(
    function: None = None, starting_batch_size: int = 128
) -> Callable[[Callable[Concatenate[int, P], R]], Callable[P, R]]: ...
def find_executable_batch_size(function: Callable[..., Any] | None = None, starting_batch_size: int = 128) -> Any:
    """A decorator that calls with the starting batch size first, and with nine tenths of it while memory is short.

    Every call starts anew, and every try has to make anew what depends on the size. When one process is out of memory,
    all try again with the same smaller size. They learn of it at the end of a try: one that leaves the function between
    two exchanges, where others wait for it, is waited for until the process group's timeout.

    Raises: RuntimeError when no size above 0 is left; TypeError when the caller passes a batch size of his own;
        PeerFailed when the function fails otherwise on another process.
    Collective: where the function exchanges data or a run is open, every process must call.
    """
    if function is None:
        return functools.partial(find_executable_batch_size, starting_batch_size=starting_batch_size)
    tried: Callable[..., Any] = function

    @functools.wraps(tried)
    def searching(*args: Any, **kwargs: Any) -> Any:
        _refuse_own_batch_size(tried, args, kwargs)
        batch_size, last = starting_batch_size, "it was the size to start from"
        while batch_size > 0:
            _free_memory()
            result, mine = _try(tried, batch_size, args, kwargs)
            everyone = _exchange(mine)
            short = {rank: one for rank, one in enumerate(everyone) if one.how == "out of memory"}
            _refuse_failed(everyone)
            if not short:
                return result
            del result
            batch_size = int(min(one.batch_size for one in everyone) * SHRINK)
            last = "; ".join(f"rank {rank} with {one.batch_size}: {one.error}" for rank, one in short.items())
        raise RuntimeError(
            f"No executable batch size found, reached zero: `{_name(tried)}` began with {starting_batch_size}, and was"
            f" out of memory down to the last size ({last}). Make the model or its inputs smaller"
        )

    return searching


def _try(
    function: Callable[..., Any], batch_size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, _Report]:
    """Collective: an error that is not about memory is told to the others before it is raised."""
    try:
        return function(batch_size, *args, **kwargs), _Report(batch_size, "well")
    except BaseException as error:
        # only words leave this block: the error holds the frames, and they the tensors that have to go
        words = f"{type(error).__name__}: {error}"
        if not _is_out_of_memory(error):
            _exchange(_Report(batch_size, "failed", words))
            raise
        return None, _Report(batch_size, "out of memory", words.splitlines()[0])


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def _exchange(report: _Report) -> list[_Report]:
    """Collective: every process of an open run must call."""
    return current().transport.all_gather_objects(report) if is_initialized() else [report]


def _refuse_failed(everyone: list[_Report]) -> None:
    failed = [f"rank {rank}: {one.error}" for rank, one in enumerate(everyone) if one.how == "failed"]
    if failed:
        raise PeerFailed("the function failed on another process, so it is not tried again: " + "; ".join(failed))


def _free_memory() -> None:
    gc.collect()
    (current().device if is_initialized() else choose(cpu=False)).release_memory()


def _refuse_own_batch_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises: TypeError when the arguments leave no place for the batch size."""
    name = _name(function)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    taken = [one.name for one in parameters if one.kind in positional]
    any_number = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    if not taken and not any_number:
        raise TypeError(f"`{name}` takes no argument; it is passed the batch size: `def {name}(batch_size)`")
    surplus = not any_number and len(args) >= len(taken)
    if not surplus and not (taken and taken[0] in kwargs):
        return
    rest = [f"{one}={value!r}" for one, value in zip(taken[1:], args[1:], strict=False)]
    rest += [f"{key}={value!r}" for key, value in kwargs.items() if key != taken[0]]
    raise TypeError(
        f"Batch size was passed into `{name}` as the first argument when called, but find_executable_batch_size passes"
        f" it already. Leave it out: `{name}({', '.join(rest)})`"
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
