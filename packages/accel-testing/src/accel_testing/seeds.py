"""The random number generators that a process has loaded: seeded, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def seed(value: int) -> None:
    """Seeds `random`, and numpy and torch where this process has imported them already."""
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
    """Inside, the generators are seeded; after, those that were loaded before are as they were."""
    python = random.getstate()
    has_numpy, has_torch = "numpy" in sys.modules, "torch" in sys.modules
    if has_numpy:
        import numpy

        numbers = numpy.random.get_state()
    if has_torch:
        import torch

        tensors = torch.get_rng_state()
        cuda: list[torch.Tensor] = []
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            cuda = torch.cuda.get_rng_state_all()
    seed(value)
    try:
        yield
    finally:
        random.setstate(python)
        if has_numpy:
            numpy.random.set_state(numbers)
        if has_torch:
            torch.set_rng_state(tensors)
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
