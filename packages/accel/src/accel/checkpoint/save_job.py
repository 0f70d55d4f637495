"""One save of this rank: from the hidden folder to the name of the checkpoint."""

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
    """What this rank does for the checkpoint in `target`. If several ranks write it, they share the hidden folder."""

    target: Path
    #: what tells the hidden folder from all others, the same on all ranks that write into it
    tag: str
    #: whether this rank names the checkpoint
    writer: bool
    contents: CheckpointContents
    #: what the manifest says about the run, and the states of random numbers of all ranks
    about: dict[str, Any]
    rng_states: list[Any]
    stage: StagedCheckpoint | None = None

    def begin(self) -> StagedCheckpoint:
        """Makes the hidden folder, or joins the ranks that have."""
        if self.stage is None:
            if self.writer:
                collect(self.target.parent, keep=hidden_path(self.target, "saving", self.tag))
            self.stage = StagedCheckpoint(self.target, tag=self.tag)
        return self.stage

    def write_own(self, before: Before) -> Digests:
        """Writes the tensors of this rank."""
        stage = self.begin()
        write_files(stage, self.contents, before)
        return {name: (digest.size, digest.xxh3) for name, digest in stage.files.items()}

    def join(self, parts: Sequence[Digests], limit_s: float = VISIBLE_AFTER_S) -> None:
        """Adds what other ranks have written, when it is visible here.

        Raises: CheckpointError if it is not visible in time.
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
        """Writes what is missing when all tensors are written: the manifest is the last file."""
        seal(self.begin(), self.contents, self.about, self.rng_states)

    def end(self, *, named: bool) -> None:
        """Lets go of the hidden folder that another rank has `named`, or removes it."""
        if self.stage is not None and named:
            self.stage.leave()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Removes what was written, as far as the disk allows."""
        if self.stage is not None:
            self.stage.abandon()
