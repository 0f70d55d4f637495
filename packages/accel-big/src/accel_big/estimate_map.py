"""Find where the parts of a model would lie within the memory of given devices, which this machine need not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from accel_checkpoint import size_in_bytes
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.maps.device_map import clean_device_map, map_within
from accel_big.maps.memory import in_order
from accel_big.maps.sizes import no_split_classes

_DEVICE = re.compile(r"(?:[a-z_]+:)?(\d+)|cpu|disk")
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, slots=True)
class Share:
    """The parts of a model that a device holds.

    Args:
        device: Index of an accelerator, "cpu" or "disk".
        allowed: Memory of the device; None for a disk without a limit.
        parts: Names and sizes of the parts.

    Units:
        Bytes.
    """

    device: str
    allowed: int | None
    parts: tuple[tuple[str, int], ...]

    @property
    def taken(self) -> int:
        """The size of all parts."""
        return sum(size for _, size in self.parts)

    @property
    def left(self) -> int | None:
        """The memory that no part takes, or None without a limit."""
        return None if self.allowed is None else self.allowed - self.taken


@dataclass(frozen=True, slots=True)
class MapEstimate:
    """The shares of all devices in one dtype.

    Args:
        dtype: Dtype of the floating-point tensors.
        shares: Shares of the devices; none if the model does not fit.
        refusal: Why it does not.
    """

    dtype: str
    shares: tuple[Share, ...]
    refusal: str = ""


def memory_of(words: Sequence[str]) -> tuple[dict[int | str, int], list[str]]:
    """Return the memory of each device in words such as "0=24GB" and "cpu=64GB", accelerators first, and the problems.

    A word before an index, as in "cuda:0", says nothing: accelerators are counted from 0.
    """
    memory: dict[int | str, int] = {}
    problems = []
    for word in words:
        device, _, size = word.partition("=")
        found = _DEVICE.fullmatch(device)
        if found is None:
            problems.append(f"--max_memory {word}: expected DEVICE=SIZE with an index, cpu or disk, as in 0=24GB")
            continue
        key = device if found[1] is None else int(found[1])
        if key in memory:
            problems.append(f"--max_memory names {key} twice")
        try:
            memory[key] = size_in_bytes(size, least=0)
        except ValueError as error:
            problems.append(f"--max_memory {word}: {error}")
    return in_order(memory), problems


def map_estimate(model: nn.Module, memory: dict[int | str, int], dtype: str) -> MapEstimate:
    """Return what each device holds if the floating-point tensors of a model are of a dtype.

    Args:
        model: Model to divide; it may be on the meta device.
        memory: Memory of each device, in bytes.
        dtype: Name of the dtype.
    """
    dtypes = {name: dtype for name, tensor in named_tensors(model).items() if tensor.is_floating_point()}
    try:
        chosen, sizes = map_within(model, memory, no_split_classes(model, None), special_dtypes=dtypes)
    except CannotRun as error:
        return MapEstimate(dtype, (), error.reasons[0])
    parts = clean_device_map(chosen)
    devices: list[int | str] = [*memory, *(() if "disk" in memory or "disk" not in parts.values() else ("disk",))]
    return MapEstimate(
        dtype,
        tuple(
            Share(
                str(device),
                memory.get(device),
                tuple((name, sizes[name]) for name, place in parts.items() if place == device),
            )
            for device in devices
        ),
    )


def join_neighbours(parts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the same parts, of which numbered neighbours are one: layers.0, layers.1 and layers.2 are layers.0-2."""
    found: list[tuple[str, int]] = []

    def stem(numbered: tuple[int, tuple[str, int]]) -> tuple[str, int]:
        place, (name, _) = numbered
        split = _NUMBERED.fullmatch(name)
        return (name, 0) if split is None else (split[1], place - int(split[2]))

    for _, group in groupby(enumerate(parts), key=stem):
        names, sizes = zip(*(part for _, part in group), strict=True)
        last = names[-1].rpartition(".")[2]
        found.append((names[0] if len(names) == 1 else f"{names[0]}-{last}", sum(sizes)))
    return [(name or "all of it", size) for name, size in found]
