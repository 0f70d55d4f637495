"""Find the checkpoints in the memories of all machines, and bring one to the machines that lack it."""

from __future__ import annotations

import ctypes
import hashlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from accel_checkpoint import CheckpointError, FileDigest, StagedCheckpoint, is_whole, read_manifest
from accel_checkpoint.manifest import MANIFEST, parse_manifest
from accel_checkpoint.retention import list_checkpoints
from accel_state import ProcessControl

from accel.checkpoint.consensus import RankConsensus, problems_of

#: when a checkpoint was written, and after how many steps
Moment = tuple[str, int]
#: bytes that are sent at a time
PIECE = 1 << 26


class Held(NamedTuple):
    """A checkpoint in memory, the same on all machines that have it.

    Args:
        moment: When it was written.
        name: The name of its folder.
        digest: The hash of its manifest.
        size: The bytes of its manifest.
    """

    moment: Moment
    name: str
    digest: str
    size: int


@final
class MachineMemories:
    """The memories of all machines of a job, some of which may be new.

    Args:
        processes: The processes that take part.
        consensus: What they say to each other.
        folder: The folder of the checkpoints of this machine.
    """

    def __init__(self, processes: ProcessControl, consensus: RankConsensus, folder: Path) -> None:
        self._processes, self._consensus, self._folder = processes, consensus, folder
        #: the ranks that have said that they have a checkpoint, one of each machine
        self._ranks_with: dict[Held, list[int]] = {}

    def held(self) -> list[Held]:
        """Return the whole checkpoints of this machine, on one process of it."""
        main = self._processes.is_local_main_process
        whole = [path for _, path in list_checkpoints(self._folder) if is_whole(path)] if main else []
        return [_held(path) for path in whole]

    def agree(self, told: list[list[Any]]) -> list[tuple[Moment, Path]]:
        """Return all checkpoints and where they are on this machine, newest first, the same on all ranks.

        Args:
            told: What `held` has returned on each rank.
        """
        self._ranks_with = {}
        for rank, entries in enumerate(told):
            for (written, steps), *about in entries:
                self._ranks_with.setdefault(Held((written, steps), *about), []).append(rank)
        newest = sorted(self._ranks_with, key=lambda held: (held.moment, len(held.name), held.name), reverse=True)
        return [(held.moment, self._folder / held.name) for held in newest]

    def complete(self, folder: Path) -> None:
        """Send a checkpoint from a machine that has it in memory to all that lack it.

        Args:
            folder: A checkpoint, which need not be in memory.

        Raises:
            CheckpointError: A machine has no room; raised on every process.

        Collective:
            Every process must call.
        """
        here = self._processes.run.topology
        held = max((held for held in self._ranks_with if self._folder / held.name == folder), default=None)
        if held is None or here.local_world_size == here.world_size:
            return
        ranks = self._ranks_with[held]
        if set(self._consensus.exchange("resume: machines", here.rank - here.local_rank)) <= set(ranks):
            return
        path, stage, problems = folder / MANIFEST, list[StagedCheckpoint](), list[str]()
        manifest = parse_manifest(b"".join(self._sent(path, held.size, ranks[0])), path)
        if here.local_rank == 0 and here.rank not in ranks:
            problems += problems_of(lambda: stage.append(StagedCheckpoint(folder)))
        for name, digest in manifest.files.items():
            pieces = self._sent(folder / name, digest.size, ranks[0])
            for staged in stage if not problems else ():
                problems += problems_of(partial(_write, staged, name, digest, pieces))
            deque(pieces, maxlen=0)  # who writes nothing takes part
        for staged in stage if not problems else ():
            problems += problems_of(partial(staged.seal, manifest)) or problems_of(staged.commit)
        for staged in stage if problems else ():
            staged.abandon()
        about = f"the checkpoint {folder} could not be brought from the memory of another machine:"
        self._consensus.require("resume: brought", about, problems)

    def _sent(self, path: Path, size: int, source: int) -> Iterator[bytes]:
        """Yield the content of a file that one rank has, piece by piece, on every process."""
        transport = self._processes.run.transport
        for begin in range(0, size, PIECE):
            piece = bytearray(min(PIECE, size - begin))
            if transport.rank == source:
                with path.open("rb") as file:
                    file.seek(begin)
                    file.readinto(piece)
            sent = transport.broadcast(torch.frombuffer(piece, dtype=torch.uint8), source)
            yield ctypes.string_at(sent.data_ptr(), sent.numel())


def moment_of(folder: Path) -> Moment:
    """Return when a checkpoint was written. One that cannot be read comes before all, to be found damaged."""
    try:
        return read_manifest(folder).moment
    except CheckpointError:
        return "~", 0


def _held(folder: Path) -> Held:
    manifest = read_manifest(folder)
    content = manifest.as_bytes()
    return Held(manifest.moment, folder.name, hashlib.sha256(content).hexdigest(), len(content))


def _write(stage: StagedCheckpoint, name: str, digest: FileDigest, pieces: Iterator[bytes]) -> None:
    """Write a file of a checkpoint as it comes."""
    stage.write(name, pieces)
    if stage.files[name] != digest:
        raise CheckpointError(f"{name} has not come as it was written")
