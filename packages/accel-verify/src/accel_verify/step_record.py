"""What a run as configured did in each optimizer step, in files: numbers as JSON, tensors as safetensors.

Each process writes its own files and waits for nobody. Tensors are those of rank 0; the others write digests of theirs.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from accel_checkpoint import save_object
from accel_checkpoint.load import read_tensors

#: learning rates and dtypes, by what they are
Settings = dict[str, float | str]
#: how a tensor of a record is called, given the name of its parameter
BEFORE, GRADIENT, AFTER = "{} before the step", "gradient of {}", "{} after the step"


@dataclass
class StepRecord:
    """One step of one optimizer, or one that was skipped.

    `losses` and `weights` are those of the micro-batches since the step before; `digests` tell tensors from others.
    """

    optimizer: int
    micro_batches: int
    losses: list[float]
    weights: list[float]
    settings: Settings
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    skipped: bool = False
    overflowed: bool = False


@dataclass
class RunEnd:
    """How the run of one process ended: after how many steps, with which settings, and what a round trip changed."""

    steps: int = 0
    precision: str = "no"
    device: str = "cpu"
    loaders: int = 0
    settings: list[Settings] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def write_step(folder: Path, rank: int, number: int, record: StepRecord) -> None:
    """Writes step `number` of a process, counted from 1."""
    path = folder / f"rank-{rank}" / str(number)
    record.digests = {name: _digest(tensor) for name, tensor in record.tensors.items()}
    tensors, record.tensors = {name: tensor.cpu() for name, tensor in record.tensors.items()}, {}
    if rank == 0:
        save_object(tensors, path.with_suffix(".safetensors"), safe_serialization=True)
    path.with_suffix(".json").write_text(json.dumps(asdict(record)))


def read_step(folder: Path, rank: int, number: int) -> StepRecord:
    """Step `number` of a process; that of rank 0 has its tensors."""
    path = folder / f"rank-{rank}" / str(number)
    record = StepRecord(**json.loads(path.with_suffix(".json").read_text()))
    record.tensors = dict(read_tensors(path.with_suffix(".safetensors"))) if rank == 0 else {}
    return record


def write_end(folder: Path, rank: int, end: RunEnd) -> None:
    """Writes how the run of a process ended."""
    (folder / f"rank-{rank}" / "end.json").write_text(json.dumps(asdict(end)))


def read_ends(folder: Path) -> list[RunEnd]:
    """How the run of each process ended."""
    ranks = range(len(list(folder.glob("rank-*"))))
    return [RunEnd(**json.loads((folder / f"rank-{rank}" / "end.json").read_text())) for rank in ranks]


def _digest(tensor: torch.Tensor) -> str:
    """A word that is the same for equal bytes only."""
    whole = tensor.detach().cpu().contiguous()
    if not whole.numel():
        return "empty"
    return hashlib.blake2b(ctypes.string_at(whole.data_ptr(), whole.nbytes), digest_size=12).hexdigest()
