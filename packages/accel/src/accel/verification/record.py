"""What a run as configured did in each optimizer step, in files: numbers as JSON, tensors as safetensors.

Each process writes its own files and waits for nobody. Tensors are those of rank 0; the others write digests of theirs.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from accel_checkpoint import save_object
from accel_checkpoint.load import read_tensors


@dataclass
class Event:
    """One step of one optimizer, or one that was skipped.

    `losses` and `weights` are those of the micro-batches since the step before. `rates` has a learning rate for each
    group; `dtypes` those of parameters and of the optimizer's state; `digests` tell tensors from others.
    """

    optimizer: int
    losses: list[float]
    weights: list[float] | None
    rates: list[float]
    skipped: bool = False
    overflowed: bool = False
    dtypes: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


@dataclass
class End:
    """How the run of one process ended: after how many events, at which rates, and what a round trip changed."""

    events: int
    optimizers: int
    precision: str
    device: str
    loaders: int
    rates: list[list[float]]
    changed: list[str]


@final
class Writer:
    """Writes what one process saw."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder / f"rank-{rank}"
        self.folder.mkdir(parents=True)
        self.keeps_tensors = rank == 0
        self.events = 0

    def event(self, event: Event, tensors: Mapping[str, torch.Tensor]) -> None:
        """Writes one event; names of tensors begin with what they are: `before`, `gradient` or `after`."""
        self.events += 1
        event.digests = {name: digest(tensor) for name, tensor in tensors.items()}
        if self.keeps_tensors:
            whole = {name: tensor.cpu() for name, tensor in tensors.items()}
            save_object(whole, self.folder / f"{self.events}.safetensors", safe_serialization=True)
        (self.folder / f"{self.events}.json").write_text(json.dumps(asdict(event)))

    def end(self, end: End) -> None:
        """Writes the end."""
        (self.folder / "end.json").write_text(json.dumps(asdict(end)))


@final
class Recording:
    """Reads what all processes saw."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks = len(list(folder.glob("rank-*")))
        self.ends = [End(**self._read(rank, "end")) for rank in range(self.ranks)]
        self.events = self.ends[0].events if self.ends else 0

    def event(self, number: int) -> list[Event]:
        """Event `number`, counted from 1, as each rank saw it."""
        return [Event(**self._read(rank, str(number))) for rank in range(self.ranks)]

    def tensors(self, number: int) -> dict[str, torch.Tensor]:
        """The tensors of event `number` on rank 0."""
        return dict(read_tensors(self.folder / "rank-0" / f"{number}.safetensors"))

    def _read(self, rank: int, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"rank-{rank}" / f"{name}.json").read_text())
        return found


def digest(tensor: torch.Tensor) -> str:
    """A word that is the same for equal bytes only."""
    whole = tensor.detach().cpu().contiguous()
    if not whole.numel():
        return "empty"
    return hashlib.blake2b(ctypes.string_at(whole.data_ptr(), whole.nbytes), digest_size=12).hexdigest()
