"""The folder of a checkpoint: what each rank was asked for, and what follows from all of it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accel_checkpoint import CheckpointError
from accel_checkpoint.retention import checkpoint_path, next_number

from accel.configuration import ProjectConfiguration

AUTOMATIC = "none, to be named automatically"


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """The folder that a rank was asked to write into.

    Args:
        writer: The rank that writes what this rank has.
        asked: The names of the folder.
        folder: Its absolute path.
        number: The number of an automatic name.
    """

    writer: int
    asked: list[str]
    folder: str
    number: int = 0

    @classmethod
    def of(cls, output_dir: str | Path | None, project: ProjectConfiguration, *, rank: int, writer: int) -> SaveRequest:
        """Return the request of a rank. Only a rank that writes looks at the disk.

        Args:
            output_dir: The folder, or None for an automatic name.
            project: The folder and the numbers of automatic names.
            rank: The rank.
            writer: The rank that writes what it has.

        Raises:
            CheckpointError: The project has no place for checkpoints; or as ValueError or OSError.
        """
        if output_dir is None and rank != writer:
            return cls(writer, [AUTOMATIC], "")
        if output_dir is None:
            return cls(writer, [AUTOMATIC], str(project.checkpoints.absolute()), next_of(project))
        # machines may stand in other folders, and a process may name its own in another way
        return cls(writer, [str(Path(output_dir)), os.path.abspath(output_dir)], os.path.abspath(output_dir))

    def to_json(self) -> dict[str, Any]:
        """Return the fields, to tell other ranks."""
        return asdict(self)


def next_of(project: ProjectConfiguration) -> int:
    """Return the number of the next checkpoint of a project."""
    if not project.automatic_checkpoint_naming:
        return project.iteration
    return max(project.iteration, next_number(project.checkpoints))


def destination(requests: list[SaveRequest], writer: int) -> Path:
    """Return the folder into which a rank writes.

    Args:
        requests: The requests of all ranks.
        writer: The rank that writes.

    Raises:
        CheckpointError: A rank was asked for another folder than the rank that writes for it.
    """
    if any(set(request.asked).isdisjoint(requests[request.writer].asked) for request in requests):
        rows = "".join(f"\n  rank {rank}: {request.asked[0]}" for rank, request in enumerate(requests))
        raise CheckpointError(
            f"no checkpoint was written: save_state was asked for different folders{rows}\ngive every rank the same"
        )
    folder = Path(requests[writer].folder)
    if requests[writer].asked != [AUTOMATIC]:
        return folder
    # machines that share no disk may have lost some: all give it the same number
    return checkpoint_path(folder, max(request.number for request in requests))
