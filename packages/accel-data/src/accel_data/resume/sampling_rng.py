"""The generators from which an epoch of a loader is drawn: recorded, put back, and the same on all ranks."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data import sampler as torch_samplers

from accel_data.sharding.seedable_sampler import SeedableRandomSampler

#: generators of the whole process, which are put back once an order is drawn
SHARED = ("default", "python", "numpy")


def generator_owner(*roots: Any) -> Any | None:
    """The first object, searched through `sampler` and `batch_sampler`, that has a `generator` for its order."""
    for candidate in chain_of(roots):
        if hasattr(candidate, "generator") and isinstance(candidate.generator, torch.Generator | None):
            return candidate
    return None


def chain_of(roots: tuple[Any, ...]) -> Iterator[Any]:
    """The objects that draw an order, from the outermost in."""
    for root in roots:
        if root is not None:
            yield root
            yield from chain_of((getattr(root, "batch_sampler", None), getattr(root, "sampler", None)))


@final
class SamplingRng:
    """The generators from which an epoch of a loader is drawn.

    torch's default one is among them: loaders without a generator draw the seed of their workers from it. Python's and
    NumPy's are where a sampler is not torch's own, or a stream, as nobody knows what it draws from.
    """

    def __init__(self, loader: DataLoader[Any], *roots: Any) -> None:
        owner = generator_owner(*roots)
        self._loader = loader
        self._owner = None if isinstance(owner, SeedableRandomSampler) else owner
        samplers = [one for one in chain_of(roots) if isinstance(one, Sampler)]
        streams = [one for one in roots if isinstance(one, IterableDataset)]
        self._foreign = bool(streams) or any(not _is_known(type(one)) for one in samplers)

    def capture(self) -> dict[str, Any]:
        """Where the generators stand: tensors, and what JSON can hold."""
        states: dict[str, Any] = {name: one.get_state() for name, one in self._own().items()}
        states["default"] = torch.default_generator.get_state()
        if self._foreign:
            version, numbers, gauss = random.getstate()
            states["python"] = [version, list(numbers), gauss]
            numpy: Any = sys.modules.get("numpy")
            if numpy is not None:
                kind, keys, *rest = numpy.random.get_state()
                states["numpy"] = [kind, keys.tolist(), *rest]
        return states

    def put(self, states: dict[str, Any]) -> None:
        """Lets the generators stand there."""
        for name, generator in self._own().items():
            if name in states:
                generator.set_state(states[name])
        if "default" in states:
            torch.default_generator.set_state(states["default"])
        if self._foreign and "python" in states:
            version, numbers, gauss = states["python"]
            random.setstate((version, tuple(numbers), gauss))
        numpy: Any = sys.modules.get("numpy")
        if self._foreign and "numpy" in states and numpy is not None:
            kind, keys, *rest = states["numpy"]
            numpy.random.set_state((kind, keys, *rest))

    @contextmanager
    def at(self, states: dict[str, Any] | None) -> Iterator[None]:
        """Draws in this block begin at `states`; the generators of the whole process are put back at its end."""
        if states is None:
            yield
            return
        before = {name: state for name, state in self.capture().items() if name in SHARED}
        self.put(states)
        try:
            yield
        finally:
            self.put(before)

    def _own(self) -> dict[str, torch.Generator]:
        found: dict[str, torch.Generator] = {}
        if self._loader.generator is not None:
            found["loader"] = self._loader.generator
        owned = None if self._owner is None else self._owner.generator
        if owned is not None and owned is not self._loader.generator:
            found["sampler"] = owned
        return found


def _is_known(kind: type) -> bool:
    return kind.__module__ == torch_samplers.__name__ or kind.__module__.startswith("accel_data.")
