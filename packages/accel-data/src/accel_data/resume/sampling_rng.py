"""Record and restore the generators that an epoch is drawn from, and make them equal on all ranks."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from accel_comm import Transport
from accel_comm.transports import serialization
from accel_ops import process_rng
from accel_state import Device
from accel_state.devices.cpu import Cpu
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data import sampler as torch_samplers

from accel_data.sharding.samplers import generator_owner, samplers_under
from accel_data.sharding.seedable_sampler import SeedableRandomSampler

#: generators of the whole process, which are put back once an order is drawn
SHARED = ("default", "python", "numpy")


@final
class SamplingRng:
    """The generators that an epoch of a loader is drawn from.

    The default generator of torch is one of them: a loader without a generator draws the seed of its workers from it.
    Those of Python and NumPy are too if a sampler is not torch's own, or for a stream, as it may draw from any.

    Args:
        loader: The loader.
        *roots: The samplers or the dataset that draw the order.
    """

    def __init__(self, loader: DataLoader[Any], *roots: Any) -> None:
        owner = generator_owner(*roots)
        own = None if isinstance(owner, SeedableRandomSampler | None) else owner.generator
        of_torch = {
            "loader": loader.generator,
            "sampler": None if own is loader.generator else own,
            "default": torch.default_generator,
        }
        #: how to read the state of each generator, and how to put it there
        self._generators: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
            name: (generator.get_state, generator.set_state)
            for name, generator in of_torch.items()
            if generator is not None
        }
        if any(map(_may_draw_from_any, samplers_under(*roots))):
            self._generators["python"] = (lambda: _listed(random.getstate())), _set_python_state
            if (numpy := sys.modules.get("numpy")) is not None:
                numbers: Any = numpy.random
                self._generators["numpy"] = (lambda: _listed(numbers.get_state())), numbers.set_state

    def follow_first_copy(self, transport: Transport | None, hardware: Device | None) -> None:
        """Set these generators, and all of the process, to their states on the first process with the same data.

        Processes that are served the same data then draw the same, also in their models.

        Args:
            transport: Transport of the ranks that share the data; without one, nothing is done.
            hardware: Device of this process.

        Collective:
            Every process must call.
        """
        if transport is None or transport.replicas == 1:
            return
        device = hardware or Cpu()
        own, of_process = _of_first(transport, lambda: (self.capture(), process_rng.capture(device)))
        process_rng.restore(of_process, device)
        self.put(own)

    def capture(self) -> dict[str, Any]:
        """Return the states of the generators, as tensors and JSON values."""
        return {name: state() for name, (state, _) in self._generators.items()}

    def put(self, states: dict[str, Any]) -> None:
        """Set the generators to captured states."""
        for name, (_, set_state) in self._generators.items():
            if name in states:
                set_state(states[name])

    @contextmanager
    def at(self, states: dict[str, Any] | None) -> Iterator[None]:
        """Return a context in which draws begin at captured states.

        At its end, the generators of the whole process are restored.

        Args:
            states: The captured states, or None to change nothing.
        """
        if states is None:
            yield
            return
        before = {name: state for name, state in self.capture().items() if name in SHARED}
        self.put(states)
        try:
            yield
        finally:
            self.put(before)


def _set_python_state(state: list[Any]) -> None:
    random.setstate((state[0], tuple(state[1]), state[2]))


def _listed(state: tuple[Any, ...]) -> list[Any]:
    """Return a state as JSON can hold it."""
    lists = [part.tolist() if hasattr(part, "tolist") else part for part in state]
    return [list(part) if isinstance(part, tuple) else part for part in lists]


def _may_draw_from_any(owner: object) -> bool:
    """Return whether it is a stream, or a sampler of neither torch nor accel."""
    module = type(owner).__module__
    known = module == torch_samplers.__name__ or module.startswith("accel_data.")
    return isinstance(owner, IterableDataset) or (isinstance(owner, Sampler) and not known)


def _of_first(transport: Transport, capture: Callable[[], Any]) -> Any:
    """Return what the first process with the same data has, which sends it to these processes and no others."""
    world, what = transport.world, "generators of the first process of each data rank"
    world.agree(what)
    first = world.rank - world.rank % transport.replicas
    mates = range(first, first + transport.replicas)
    speaks = world.rank == first

    def told(message: torch.Tensor) -> torch.Tensor:
        sent = [[message] if rank in mates else [] for rank in range(world.size)] if speaks else []
        world.point_to_point.scatter_tensors(what, sent, [] if speaks else [message], first)
        return message

    content = bytearray(serialization.pack(capture()) if speaks else b"")
    length = int(told(torch.tensor([len(content)], device="cpu")))
    told(torch.frombuffer(content := content or bytearray(length), dtype=torch.uint8))
    return serialization.unpack(bytes(content))
