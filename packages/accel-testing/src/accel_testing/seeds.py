"""Seed and restore the random number generators that a process has loaded."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


def seed(value: int) -> None:
    """Seed `random`, and NumPy and torch if this process has imported them already."""
    random.seed(value)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(value)
    if "torch" in sys.modules:
        import torch

        # torch.manual_seed queues one more call for CUDA each time while CUDA is not initialised
        torch.default_generator.manual_seed(value)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(value)


@contextmanager
def seeded(value: int) -> Iterator[None]:
    """Seed the generators inside the block, and restore those that were loaded before at its end."""
    python = random.getstate()
    numpy: Any = sys.modules.get("numpy")
    numbers = numpy.random.get_state() if numpy is not None else None
    with ExitStack() as stack:
        if "torch" in sys.modules:
            import torch

            started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            stack.enter_context(torch.random.fork_rng(range(torch.cuda.device_count()) if started else ()))
        seed(value)
        try:
            yield
        finally:
            random.setstate(python)
            if numbers is not None:
                numpy.random.set_state(numbers)
