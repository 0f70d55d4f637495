"""Make the random numbers of ranks equal, or different."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from accel_comm import Transport
from accel_state import Device
from accel_state.devices import choose


class RNGType(StrEnum):
    """The random number generators that can be made equal on all ranks."""

    TORCH = "torch"
    CUDA = "cuda"
    XLA = "xla"
    GENERATOR = "generator"


def rng_types_of(names: Iterable[str | RNGType]) -> list[RNGType]:
    """Return the generators with the given names.

    Raises:
        ValueError: A name is unknown; the message lists the known ones.
    """
    known = {member.value for member in RNGType}
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(f"rng_types {', '.join(map(repr, wrong))}: expected some of {', '.join(sorted(known))}")
    return [RNGType(name) for name in names]


def synchronize_rng_state(
    rng_type: str | RNGType | None = None,
    generator: torch.Generator | None = None,
    *,
    transport: Transport,
    device: Device | None = None,
) -> None:
    """Set a generator to the state of the generator of rank 0.

    Args:
        rng_type: Which generator; "torch" if it is left out.
        generator: The generator to set if `rng_type` is "generator".
        transport: Transport of the ranks that take part.
        device: Device of this process, for "cuda" and "xla"; chosen as an Accelerator would if it is left out.

    Raises:
        ValueError: The name is unknown, "generator" comes without `generator`, or the device is not in use.

    Collective:
        Every rank of the transport must call.
    """
    (kind,) = rng_types_of(["torch" if rng_type is None else rng_type])
    if kind is RNGType.TORCH:
        torch.set_rng_state(transport.broadcast(torch.get_rng_state(), 0))
    elif kind is RNGType.GENERATOR:
        if generator is None:
            raise ValueError('synchronising "generator" needs the generator: pass generator=')
        generator.set_state(transport.broadcast(generator.get_state(), 0))
    else:
        hardware = device or choose(cpu=False)
        if hardware.kind != kind:
            raise ValueError(f"rng_types has {kind.value!r}, but this run is on {hardware.kind}; leave it out")
        hardware.set_rng_state(transport.broadcast(hardware.rng_state(), 0))


def synchronize_rng_states(
    rng_types: Iterable[str | RNGType],
    generator: torch.Generator | None = None,
    *,
    transport: Transport,
    device: Device | None = None,
) -> None:
    """Set each of several generators to the state of the same generator of rank 0.

    Args:
        rng_types: Which generators.
        generator: The generator to set for "generator".
        transport: Transport of the ranks that take part.
        device: Device of this process, for "cuda" and "xla"; chosen as an Accelerator would if it is left out.

    Raises:
        ValueError: As `synchronize_rng_state`.

    Collective:
        Every rank of the transport must call.
    """
    for rng_type in rng_types_of(rng_types):
        synchronize_rng_state(rng_type, generator, transport=transport, device=device)


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False, *, rank: int = 0) -> None:
    """Seed Python, torch with all its devices, and NumPy if it is loaded.

    The generator of XLA is seeded too, if an Accelerator on XLA was made before, or torch_xla was imported.

    Args:
        seed: The seed.
        device_specific: Add `rank` to the seed, so that ranks draw different numbers.
        deterministic: Call `torch.use_deterministic_algorithms(True)`.
        rank: Rank of this process.
    """
    if device_specific:
        seed += rank
    seed_everything(seed)
    xla: Any = sys.modules.get("torch_xla.core.xla_model")
    if xla is not None:
        xla.set_rng_state(seed)  # torch.manual_seed leaves it out
    if deterministic:
        torch.use_deterministic_algorithms(True)


def seed_everything(seed: int) -> None:
    """Seed Python, torch, and NumPy if it is loaded."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
