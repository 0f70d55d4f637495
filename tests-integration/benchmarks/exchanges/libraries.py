"""The same exchanges by accel and Hugging Face Accelerate, whose names for them are the same."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.row import Skipped


def accelerator(library: str) -> Any:
    """The Accelerator of a library, on the CPU.

    Raises: Skipped where the library is not installed.
    """
    if find_spec(library) is None:
        raise Skipped(f"pip install {library}{'==1.15.0' if library == 'accelerate' else ''}")
    return import_module(library).Accelerator(cpu=True)


def exchange(library: str, operation: str) -> Callable[[Any], Any]:
    """The Accelerator's own method, and where it has none the function of that name.

    Raises: Skipped where the library is not installed.
    """
    owner = accelerator(library)
    found: Callable[[Any], Any] = getattr(owner, operation, None) or getattr(
        import_module(f"{library}.utils"), operation
    )
    return found
