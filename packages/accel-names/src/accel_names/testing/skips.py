"""Give tests for Accelerate the devices of this machine, launches, and reasons to skip."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from accel_state.environ import flag, process_environ
from torch import Tensor

from accel_names.lazy_names import find
from accel_names.operations import gather

_accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
#: the kind of device that tests run on
torch_device = _accelerator.type if _accelerator is not None else "cpu"
#: how many devices of this kind there are; one for the CPU
device_count = torch.accelerator.device_count() if _accelerator is not None else 1


def get_launch_command(**options: Any) -> list[str]:
    """Return the words of `accel launch` with options, of which True is a flag without a value."""
    command = [sys.executable, "-m", "accel", "launch"]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not False and value is not None:
            command.append(f"--{name}={value}")
    return command


DEFAULT_LAUNCH_COMMAND = get_launch_command(num_processes=device_count, monitor_interval=0.1)


def are_the_same_tensors(tensor: Tensor) -> bool:
    """Return whether a tensor is equal on all ranks, bit by bit.

    Collective:
        Every rank must call, with tensors of one shape.
    """
    own = tensor.detach().clone()
    parts = gather(own[None])
    return all(bool(torch.equal(part, own)) for part in parts)


def assert_exception(exception_class: type[BaseException], msg: str | None = None) -> AbstractContextManager[object]:
    """Return a context that checks that its block raises an error.

    Args:
        exception_class: The class of the error.
        msg: Words that the text of the error has.

    Raises:
        AssertionError: If the block raises none, or one without these words.
    """
    return unittest.TestCase().assertRaisesRegex(exception_class, re.escape(msg or ""))  # noqa: PT027 - pytest may be absent


def execute_subprocess_async(
    cmd: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 180, **ignored: object
) -> Any:
    """Run a command to its end.

    Args:
        cmd: The words of the command.
        env: Its environment; by default that of this process.
        timeout: How long it may take, in seconds.
        **ignored: Other arguments of Accelerate's function.

    Returns:
        An object with its `returncode`, and the lines of `stdout` and `stderr`.

    Raises:
        RuntimeError: With what it wrote to stderr, if it fails.
        subprocess.TimeoutExpired: If it takes longer.
    """
    done = subprocess.run(list(cmd), env=env, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(cmd)} ended with exit code {done.returncode}:\n{done.stderr}")
    return SimpleNamespace(returncode=0, stdout=done.stdout.splitlines(), stderr=done.stderr.splitlines())


slow = unittest.skipUnless(flag(process_environ(), "RUN_SLOW"), "it is slow: set RUN_SLOW=1")
skip = unittest.skip("it is skipped everywhere")
require_cpu = unittest.skipUnless(torch_device == "cpu", "it needs a machine without accelerators")
require_non_cpu = unittest.skipUnless(torch_device != "cpu", "it needs an accelerator")
require_single_device = unittest.skipUnless(torch_device != "cpu" and device_count == 1, "it needs one accelerator")
require_multi_device = unittest.skipUnless(device_count > 1, "it needs several accelerators")
require_huggingface_suite = unittest.skipUnless(
    find_spec("transformers") and find_spec("datasets"), "it needs transformers and datasets"
)


def __getattr__(name: str) -> Any:
    """Return a decorator such as `require_wandb`, `require_non_xpu` or `require_multi_gpu_or_xpu`, made of its name."""
    if not name.startswith("require_"):
        return find(name, "accel.test_utils")
    return unittest.skipUnless(_is_here(name.removeprefix("require_")), f"it needs {name.removeprefix('require_')}")


def _is_here(need: str) -> bool:
    kind, _, rest = need.partition("_")
    if kind in ("non", "multi", "single"):
        counted = kind == "non" or (device_count > 1) == (kind == "multi")
        return counted and _is_here(rest) != (kind == "non")
    if "_or_" in need:
        return any(map(_is_here, need.split("_or_")))
    if need == "trackers":
        return any(map(_is_here, ("wandb", "tensorboard", "trackio", "swanlab"))) and not _is_here("comet_ml")
    known = {"gpu": "cuda", "tpu": "torch_xla", "fsdp2": "weights_only", "tp": "transformers"}
    return bool(find(f"is_{known.get(need, need)}_available", "accel.test_utils")())
