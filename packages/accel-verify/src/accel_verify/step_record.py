"""Records of the steps of the run as configured, in files: numbers as JSON, tensors as safetensors.

Each process writes its own files and waits for nobody. Rank 0 writes tensors; the others write digests of theirs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from accel_checkpoint import FileDigest, save_object, serialize
from accel_checkpoint.load import read_tensors

#: learning rates and dtypes, by their names
Settings = dict[str, float | str]
#: the names of the tensors of a record, made of the name of a parameter
BEFORE, GRADIENT, AFTER = "{} before the step", "gradient of {}", "{} after the step"


@dataclass
class StepRecord:
    """A step of an optimizer, made or skipped.

    `losses` and `weights` belong to the micro-batches since the step before; `digests` are equal for equal tensors.
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
    record.digests = {name: FileDigest.of(serialize({name: value})).xxh3 for name, value in record.tensors.items()}
    tensors, record.tensors = {name: tensor.cpu() for name, tensor in record.tensors.items()}, {}
    if rank == 0:
        save_object(tensors, path.with_suffix(".safetensors"), safe_serialization=True)
    path.with_suffix(".json").write_text(json.dumps(asdict(record)))


def read_step(folder: Path, rank: int, number: int) -> StepRecord:
    """Step `number` of a process; only rank 0 has tensors."""
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
