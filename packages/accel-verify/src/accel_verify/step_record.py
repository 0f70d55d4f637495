"""Write and read the steps of the run as configured: numbers as JSON, tensors as safetensors.

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

    Args:
        optimizer: Index of the optimizer, in the order in which the script prepared them.
        micro_batches: Number of losses since the step before, on each rank.
        losses: The losses of these micro-batches.
        weights: Their weights; empty if the script gave none.
        settings: Learning rates and dtypes, by name.
        tensors: Parameters and gradients, by the names that `BEFORE`, `GRADIENT` and `AFTER` make.
        digests: A digest of each tensor, equal for equal tensors.
        skipped: True if the step was due and not made.
        overflowed: True if a gradient of a skipped step has an inf or nan.
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
    """The end of the run of one process.

    Args:
        steps: Number of steps, made or skipped.
        precision: Mixed precision of the Accelerator.
        device: Type of its device.
        loaders: Number of loaders that were prepared.
        settings: Learning rates and dtypes of each optimizer.
        changed: What a save and load round trip changes, on rank 0.
        replicas: Number of neighbouring processes that have the same samples.
    """

    steps: int = 0
    precision: str = "no"
    device: str = "cpu"
    loaders: int = 0
    settings: list[Settings] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    replicas: int = 1


def write_step(folder: Path, rank: int, number: int, record: StepRecord) -> None:
    """Write a step of a process.

    Args:
        folder: Folder with the records of all ranks.
        rank: Rank of the process.
        number: Number of the step, from 1.
        record: The step. It has digests afterwards, and no tensors.
    """
    path = folder / f"rank-{rank}" / str(number)
    record.digests = {name: FileDigest.of(serialize({name: value})).xxh3 for name, value in record.tensors.items()}
    tensors, record.tensors = {name: tensor.cpu() for name, tensor in record.tensors.items()}, {}
    if rank == 0:
        save_object(tensors, path.with_suffix(".safetensors"), safe_serialization=True)
    path.with_suffix(".json").write_text(json.dumps(asdict(record)))


def read_step(folder: Path, rank: int, number: int) -> StepRecord:
    """Read a step of a process.

    Args:
        folder: Folder with the records of all ranks.
        rank: Rank of the process.
        number: Number of the step, from 1.

    Returns:
        The step, with tensors only on rank 0.
    """
    path = folder / f"rank-{rank}" / str(number)
    record = StepRecord(**json.loads(path.with_suffix(".json").read_text()))
    record.tensors = dict(read_tensors(path.with_suffix(".safetensors"))) if rank == 0 else {}
    return record


def write_end(folder: Path, rank: int, end: RunEnd) -> None:
    """Write the end of the run of a process.

    Args:
        folder: Folder with the records of all ranks.
        rank: Rank of the process.
        end: The end to write.
    """
    (folder / f"rank-{rank}" / "end.json").write_text(json.dumps(asdict(end)))


def read_ends(folder: Path) -> list[RunEnd]:
    """Read the end of the run of each process, in rank order."""
    ranks = range(len(list(folder.glob("rank-*"))))
    return [RunEnd(**json.loads((folder / f"rank-{rank}" / "end.json").read_text())) for rank in ranks]
