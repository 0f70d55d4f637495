"""The save of a checkpoint by this rank: from the hidden folder to its name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from accel_checkpoint import CheckpointError, FileDigest, StagedCheckpoint, collect
from accel_checkpoint.hidden_folder import hidden_path

from accel.checkpoint.contents import CheckpointContents, seal, write_files

#: how long a file of another machine may stay invisible on a disk that both share (NFS keeps names for 60 s)
VISIBLE_AFTER_S = 90.0
#: the folder of the checkpoint before, and its files, which may be linked
Before = tuple[Path, Mapping[str, FileDigest]] | None
#: the size and hash of each file that a rank has written, as it tells the others
Digests = dict[str, tuple[int, str]]


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
    """

    target: Path
    tag: str
    writer: bool
    contents: CheckpointContents
    about: dict[str, Any]
    rng_states: list[Any]
    stage: StagedCheckpoint | None = None

    def begin(self) -> StagedCheckpoint:
        """Make the hidden folder, or join the ranks that have, and return it."""
        if self.stage is None:
            if self.writer:
                collect(self.target.parent, keep=hidden_path(self.target, "saving", self.tag))
            self.stage = StagedCheckpoint(self.target, tag=self.tag)
        return self.stage

    def write_own(self, before: Before) -> Digests:
        """Write the tensors of this rank, and return the sizes and hashes of their files."""
        stage = self.begin()
        write_files(stage, self.contents, before)
        return {name: (digest.size, digest.xxh3) for name, digest in stage.files.items()}

    def join(self, parts: Sequence[Digests], limit_s: float = VISIBLE_AFTER_S) -> None:
        """Add what other ranks have written, when it is visible here.

        Raises:
            CheckpointError: It is not visible in time.
        """
        stage, until = self.begin(), time.monotonic() + limit_s
        for rank, part in enumerate(parts):
            for name, (size, xxh3) in part.items():
                path = stage.path / name
                while not (path.is_file() and path.stat().st_size == size):
                    if time.monotonic() > until:
                        raise CheckpointError(
                            f"rank {rank} has written {path.name}, and rank 0 does not find it: save a sharded model"
                            f" to a disk that all machines share; {self.target} is on none"
                        )
                    time.sleep(0.1)
                stage.files[name] = FileDigest(size, xxh3)

    def seal(self) -> None:
        """Write what is missing when all tensors are written: the manifest is the last file."""
        seal(self.begin(), self.contents, self.about, self.rng_states)

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
