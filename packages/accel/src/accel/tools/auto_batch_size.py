"""Run a function again with a smaller batch size, on all processes, when one of them is out of memory."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import torch
from accel_state import current, is_initialized
from accel_state.devices import choose

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

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


@overload
def find_executable_batch_size(
    function: Callable[Concatenate[int, P], R],
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[P, R]: ...
@overload
def find_executable_batch_size(
    function: None = None, starting_batch_size: int = 128, reduce_batch_size_fn: Callable[[], int] | None = None
) -> Callable[[Callable[Concatenate[int, P], R]], Callable[P, R]]: ...
def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Any:
    """Return a function that is called with smaller and smaller batch sizes until memory suffices.

    Every call starts anew, and every try has to make anew what depends on the size. When one process is out of memory,
    all try again with the same smaller size. They learn of it at the end of a try. If it leaves the function between
    two exchanges, the others wait for it there, until the timeout of the process group. An error of another kind is
    raised at once. The others fail when the process that raised it ends, or exchanges something else.

    Args:
        function: A function whose first argument is the batch size; leave it out to decorate one.
        starting_batch_size: The first size; the next ones have nine tenths of the size before.
        reduce_batch_size_fn: A function that returns the next size instead. It is called on every process.

    Raises:
        RuntimeError: No size above 0 is left.
        TypeError: The caller passes a batch size of his own.

    Collective:
        If the function exchanges data, or a run is open, every process must call.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    tried: Callable[..., Any] = function

    @functools.wraps(tried)
    def searching(*args: Any, **kwargs: Any) -> Any:
        _refuse_own_batch_size(tried, args, kwargs)
        batch_size, last = starting_batch_size, "it was the size to start from"
        while batch_size > 0:
            _free_memory()
            result, shortage = _try(tried, batch_size, args, kwargs)
            ends = _exchange((batch_size, shortage))
            short = [f"rank {rank} with {size}: {why}" for rank, (size, why) in enumerate(ends) if why is not None]
            if not short:
                return result
            del result
            if reduce_batch_size_fn is None:
                batch_size = int(min(size for size, _ in ends) * SHRINK)
            else:
                batch_size = min(_exchange(reduce_batch_size_fn()))
            last = "; ".join(short)
        raise RuntimeError(
            f"No executable batch size found, reached zero: `{_name(tried)}` began with {starting_batch_size}, and was"
            f" out of memory down to the last size ({last}). Make the model or its inputs smaller"
        )

    return searching


def _try(
    function: Callable[..., Any], batch_size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, str | None]:
    """Return the result of the function, or in which words it is out of memory."""
    try:
        return function(batch_size, *args, **kwargs), None
    except BaseException as error:
        if not should_reduce_batch_size(error):
            raise  # at once: others may wait for this process in an exchange of the function
        # only words leave this block: the error holds the frames, and they the tensors that have to go
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


def should_reduce_batch_size(error: BaseException) -> bool:
    """Return True if memory was short, of a device or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def _exchange(value: T) -> list[T]:
    """Return the values of all processes: every process of an open run must call."""
    if not is_initialized():
        return [value]
    return current().transport.all_gather_objects(value, "find_executable_batch_size")


def _free_memory() -> None:
    gc.collect()
    (current().device if is_initialized() else choose(cpu=False)).release_memory()


def _refuse_own_batch_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError if the arguments leave no place for the batch size."""
    name, known = _name(function), inspect.signature(function)
    taken = list(known.parameters)
    try:
        known.bind_partial(0)
    except TypeError:
        raise TypeError(f"`{name}` takes no argument; it is passed the batch size: `def {name}(batch_size)`") from None
    with suppress(TypeError):
        known.bind_partial(0, *args)
        if taken[0] not in kwargs:
            return
    rest = [f"{name}={value!r}" for name, value in zip(taken[1:], args[1:], strict=False)]
    rest += [f"{key}={value!r}" for key, value in kwargs.items() if key != taken[0]]
    raise TypeError(
        f"Batch size was passed into `{name}` as the first argument when called, but find_executable_batch_size passes"
        f" it already. Leave it out: `{name}({', '.join(rest)})`"
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
