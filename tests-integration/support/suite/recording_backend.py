"""Makes the recording stand-in an accelerator that torch knows, so that a whole Accelerator trains on it."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils.backend_registration

from suite.recording_device import DeviceTensor, installed_device

NAME = "recording"


class _Module:
    """What torch asks the module of an accelerator for."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing: no random number is drawn on it."""

    def get_rng_state(self) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Does nothing: no random number is drawn on it."""

    def empty_cache(self) -> None:
        """Does nothing: it has no cache."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


_SETUP: Any = vars(torch.utils.backend_registration).get("_setup_privateuseone_for_python_backend")


def missing() -> str | None:
    """Why it cannot be registered, in words; None if it can."""
    return None if _SETUP is not None else f"torch {torch.__version__} takes no accelerator that is written in Python"


@functools.cache
def register() -> torch.device:
    """The device of torch's current accelerator from now on, for this whole process; linear layers have autocast.

    Raises: RuntimeError if this torch takes no accelerator that is written in Python.
    """
    if _SETUP is None:
        raise RuntimeError(str(missing()))
    _SETUP(NAME, backend_module=_Module())
    library: Any = torch.library.Library  # torch declares it without types
    every, aten = library("_", "IMPL"), library("aten", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten.impl("linear", _linear_in_half, "AutocastPrivateUse1")
    # torch.tensor(number, device=...) tells no mode what it does
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    aten.impl("_copy_from", _copy_from, "PrivateUse1")
    _libraries.extend([every, aten])
    return torch.device(NAME, 0)


# what a library has registered lasts as long as the library
_libraries: list[torch.library.Library] = []


def _linear_in_half(*tensors: Any) -> torch.Tensor:
    dtype = torch.get_autocast_dtype(NAME)
    with torch.amp.autocast(NAME, enabled=False):
        in_half: list[Any] = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
        return torch.nn.functional.linear(*in_half)


def _empty_strided(size: list[int], stride: list[int], *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), torch.device(NAME, 0))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    installed_device().answer(torch.ops.aten.copy_.default, (target, source, non_blocking), {})
    return target
