"""What tests for Accelerate use: the devices of this machine, launches, and reasons to skip."""

from __future__ import annotations

import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from accel_state.environ import flag, process_environ
from torch import Tensor

from accel_names.operations import gather

Test = TypeVar("Test", bound=Callable[..., Any])

_accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
#: the kind of device that tests run on
torch_device = _accelerator.type if _accelerator is not None else "cpu"
#: how many devices of this kind there are; one for the CPU
device_count = torch.accelerator.device_count() if _accelerator is not None else 1


def get_launch_command(**options: Any) -> list[str]:
    """The words of `accel launch` with these options, for the Python that runs; True is a flag without a value."""
    command = [sys.executable, "-m", "accel", "launch"]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not False and value is not None:
            command.append(f"--{name}={value}")
    return command


DEFAULT_LAUNCH_COMMAND = get_launch_command(num_processes=device_count, monitor_interval=0.1)


def are_the_same_tensors(tensor: Tensor) -> bool:
    """Whether the tensor is equal on all ranks, bit by bit.

    Collective: every rank must call, with tensors of one shape.
    """
    own = tensor.detach().clone()
    parts = gather(own[None])
    return all(bool(torch.equal(part, own)) for part in parts)


@contextmanager
def assert_exception(exception_class: type[BaseException], msg: str | None = None) -> Iterator[None]:
    """A block that has to raise this error, with these words in it.

    Raises: AssertionError if it raises none, another one, or one of other words.
    """
    try:
        yield
    except exception_class as error:
        if msg is not None and msg not in str(error):
            raise AssertionError(f"expected {msg!r} in the words of the error, found {str(error)!r}") from error
    else:
        raise AssertionError(f"expected {exception_class.__name__}, and nothing was raised")


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """What a command left, line by line."""

    returncode: int
    stdout: list[str]
    stderr: list[str]


def execute_subprocess_async(
    cmd: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 180, **ignored: object
) -> ProcessOutput:
    """Runs a command to its end.

    Raises: RuntimeError with its errors if it fails; subprocess.TimeoutExpired.
    Units: timeout in seconds.
    """
    done = subprocess.run(list(cmd), env=env, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(cmd)} ended with exit code {done.returncode}:\n{done.stderr}")
    return ProcessOutput(0, done.stdout.splitlines(), done.stderr.splitlines())


def _needs(condition: bool, words: str) -> Callable[[Test], Test]:
    """A decorator that skips a test, or all of a class, unless the condition holds."""
    return unittest.skipUnless(condition, words)


def _there(*libraries: str) -> bool:
    return all(find_spec(name) is not None for name in libraries)


slow = _needs(flag(process_environ(), "RUN_SLOW"), "it is slow: set RUN_SLOW=1")
require_cpu = _needs(torch_device == "cpu", "it needs a machine without accelerators")
require_non_cpu = _needs(torch_device != "cpu", "it needs an accelerator")
require_single_device = _needs(torch_device != "cpu" and device_count == 1, "it needs a single accelerator")
require_multi_device = _needs(device_count > 1, "it needs several accelerators")
require_bnb = _needs(_there("bitsandbytes"), "it needs bitsandbytes")
require_huggingface_suite = _needs(_there("transformers", "datasets"), "it needs transformers and datasets")
