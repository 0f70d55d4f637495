"""The part of a rank in a save: the folder that it was asked to write into, the hidden folder, and its name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from accel_checkpoint import CheckpointError, FileDigest, Manifest, StagedCheckpoint, collect, serialize
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.hidden_folder import hidden_path
from accel_checkpoint.manifest import RANK_STATES, rank_lines
from accel_checkpoint.retention import checkpoint_path, next_number

from accel.checkpoint.contents import CheckpointContents
from accel.configuration import ProjectConfiguration

#: the most processes whose random numbers, 18 KB each, are in the manifest, which every process reads
RANKS_IN_MANIFEST = 64
AUTOMATIC = "none, to be named automatically"
#: how long a file of another machine may stay invisible on a disk that both share (NFS keeps names for 60 s)
VISIBLE_AFTER_S = 90.0
#: the folder of the checkpoint before, and its files, which may be linked
Before = tuple[Path, Mapping[str, FileDigest]] | None
#: the size and hash of each file that a rank has written, as it tells the others
Digests = dict[str, tuple[int, str]]


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


@final
@dataclass
class SaveJob:
    """The part of this rank in a save. If several ranks write one checkpoint, they share the hidden folder.

    Args:
        target: The folder of the checkpoint.
        tag: What tells the hidden folder from all others, the same on all ranks that write into it.
        writer: Whether this rank names the checkpoint.
        contents: What it writes.
        about: What the manifest says about the run.
        rng_states: The random numbers of all ranks.
        stage: The hidden folder, if it was made already.
        parts: The files that all ranks have written, on whichever machine.
    """

    target: Path
    tag: str
    writer: bool
    contents: CheckpointContents
    about: dict[str, Any]
    rng_states: list[Any]
    stage: StagedCheckpoint | None = None
    parts: dict[str, FileDigest] = field(default_factory=dict)

    def begin(self) -> StagedCheckpoint:
        """Make the hidden folder, or join the ranks that have, and return it."""
        if self.stage is None:
            if self.writer:
                collect(self.target.parent, keep=hidden_path(self.target, "saving", self.tag))
            self.stage = StagedCheckpoint(self.target, tag=self.tag)
        return self.stage

    def write_own(self, before: Before) -> Digests:
        """Write the tensors of this rank, and return the sizes and hashes of their files."""
        stage, contents = self.begin(), self.contents
        for name, tensors in contents.files.items():
            if name not in contents.fixed or before is None or not self._linked(stage, name, *before):
                stage.write_tensors(name, tensors, contents.metadata.get(name))
        return {name: (digest.size, digest.xxh3) for name, digest in stage.files.items()}

    def _linked(self, stage: StagedCheckpoint, name: str, folder: Path, files: Mapping[str, FileDigest]) -> bool:
        """Return True if the checkpoint before has the same file, and the file could be linked."""
        content = serialize(self.contents.files[name], self.contents.metadata.get(name))
        known = files.get(name)
        return known is not None and FileDigest.of(content) == known and stage.link(name, folder / name, known)

    def join(self, parts: Sequence[Digests], here: int, limit_s: float = VISIBLE_AFTER_S) -> None:
        """Add what other ranks have written, when it is visible here.

        Args:
            parts: What each rank has written.
            here: The number of the first ranks, which write into this folder.
            limit_s: How long to wait.

        Raises:
            CheckpointError: It is not visible in time.
        """
        stage, until = self.begin(), time.monotonic() + limit_s
        while True:
            sizes = file_sizes(stage.path)
            missing = [
                (rank, name)
                for rank, part in enumerate(parts[:here])
                for name, (size, _) in part.items()
                if sizes.get(name) != size
            ]
            if not missing:
                break
            if time.monotonic() > until:
                rank, name = missing[0]
                raise CheckpointError(
                    f"rank {rank} has written {name}, and rank 0 does not find it: save a sharded model to a disk that"
                    f" all machines share; {self.target} is on none"
                )
            time.sleep(0.1)
        self.parts = {name: FileDigest(*digest) for part in parts for name, digest in part.items()}
        stage.files |= {name: digest for name, digest in self.parts.items() if name in sizes}

    def seal(self) -> None:
        """Write the small texts and, last, the manifest, when all tensors are in the hidden folder."""
        stage, contents = self.begin(), self.contents
        for name, text in contents.texts.items():
            stage.write(name, [text.encode()])
        ranks = self.rng_states
        if len(ranks) > RANKS_IN_MANIFEST:
            stage.write(RANK_STATES, [rank_lines(ranks)])
            ranks = []
        stage.adopt()
        stage.seal(Manifest(self.about, stage.files | self.parts, contents.items, ranks, contents.parts))

    def end(self, *, named: bool) -> None:
        """Close the hidden folder that another rank has `named`, or remove it."""
        if self.stage is not None and named:
            self.stage.leave()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Remove what was written, as far as the disk allows."""
        if self.stage is not None:
            self.stage.abandon()
