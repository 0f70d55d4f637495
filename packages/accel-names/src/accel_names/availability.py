"""Return for `is_X_available` whether a library is installed, or torch has a device of a kind."""

from __future__ import annotations

import functools
import logging
import operator
import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from accel_amp import PRECISIONS
from accel_state.devices import choose
from accel_state.environ import process_environ
from torch.torch_version import TorchVersion

from accel_names.lazy_names import table
from accel_names.models import extract_model_from_parallel

logger = logging.getLogger("accel")
P = ParamSpec("P")
R = TypeVar("R")

_COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


def __getattr__(name: str) -> Callable[[], bool]:
    libraries, devices = table().libraries, table().devices
    if name in libraries:
        asked: Callable[[], bool] = functools.partial(_installed, libraries[name])
    elif name in devices:
        asked = functools.partial(_has_device, devices[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def available(*_: Any, **__: Any) -> bool:
        return asked()

    available.__name__ = name
    return available


def _installed(module: str) -> bool:
    parents = module.split(".")
    return all(find_spec(".".join(parents[: index + 1])) is not None for index in range(len(parents)))


def _has_device(kind: str) -> bool:
    try:
        device_module = torch.get_device_module(kind)
    except RuntimeError:  # torch knows no device of this name
        return False
    return bool(device_module.is_available())


def compare_versions(library_or_version: Any, operation: str, requirement_version: str) -> bool:
    """Compare two versions.

    Args:
        library_or_version: The name of a library, or a version.
        operation: "<", "<=", "==", "!=", ">=" or ">".
        requirement_version: The version to compare with.

    Raises:
        ValueError: For another operation.
        PackageNotFoundError: For a library that is not installed.
    """
    if operation not in _COMPARE:
        raise ValueError(f"operation={operation!r}: expected one of {', '.join(_COMPARE)}")
    own = version(library_or_version) if type(library_or_version) is str else str(library_or_version)
    return bool(_COMPARE[operation](TorchVersion(own), requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Compare torch's version, without what follows its numbers, with another version."""
    return compare_versions(TorchVersion(re.match(r"[\d.]*\d", torch.__version__)[0]), operation, version)  # type: ignore[index]


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Return whether the device of a run computes in bfloat16 by itself."""
    return _precision_runs("bf16")


def _precision_runs(name: str) -> bool:
    kind = choose(cpu=False, environ=process_environ()).place(None).type
    return PRECISIONS.load(name)().missing(kind) is None


def is_fp8_available() -> bool:
    """Return whether the library for float8, torchao, is installed."""
    return _installed("torchao")


def is_rocm_available() -> bool:
    """Return whether torch was built for ROCm."""
    return torch.version.hip is not None


def check_cuda_fp8_capability() -> bool:
    """Return whether the current GPU computes in float8: from compute capability 8.9."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def is_habana_gaudi1() -> bool:
    """Return False, as accel does not run on the first generation of Gaudi."""
    return False


def is_transformer_engine_mxfp8_available() -> bool:
    """Return False, as accel computes in no format of Transformer Engine."""
    return False


def is_weights_only_available() -> bool:
    """Return True, as torch reads weights without running code from files."""
    return True


def is_peft_model(model: torch.nn.Module) -> bool:
    """Return whether a model, in whatever containers, is of the library peft."""
    inner = extract_model_from_parallel(model)
    return any(kind.__name__ == "PeftModel" and kind.__module__.startswith("peft.") for kind in type(inner).__mro__)


def check_os_kernel() -> None:
    """Warn of a Linux before 5.5, on which processes that share memory may hang."""
    release = platform.release()
    if platform.system() == "Linux" and tuple(map(int, re.findall(r"\d+", release)[:2])) < (5, 5):
        logger.warning(f"Linux {release}: before 5.5.0 a process may hang while it shares memory; use a newer kernel")


def _required(module: str, install: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _installed(module):
                raise ImportError(f"{function.__name__} needs {module}: {install}")
            return function(*args, **kwargs)

        return checked

    return decorate


def is_fp16_available() -> bool:
    """Return whether the device of a run has a loss scaler, which float16 needs."""
    return _precision_runs("fp16")


torchao_required = _required("torchao", "pip install torchao")
deepspeed_required = _required(table().libraries["is_deepspeed_available"], "pip install deepspeed")
