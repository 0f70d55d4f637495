"""Find the checkpoints that the memories of all machines have together, and complete that of each machine."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from accel_checkpoint import CheckpointError, FileDigest, StagedCheckpoint, read_manifest
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.manifest import MANIFEST, parse_manifest
from accel_checkpoint.retention import list_checkpoints
from accel_state import ProcessControl

from accel.checkpoint.consensus import RankConsensus, problems_of

#: when a checkpoint was written, and after how many steps
Moment = tuple[str, int]
#: bytes that are sent at a time
PIECE = 1 << 26


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one checkpoint in the memories of machines.

    Args:
        manifest_bytes: The size of its manifest.
        lacks: The files that the machine of each rank lacks, for ranks whose machines have some of it.
    """

    manifest_bytes: int
    lacks: dict[int, list[str]]


@final
class MachineMemories:
    """The memories of all machines of a job, each of which has whole checkpoints, parts of some, or none.

    Args:
        processes: The processes that take part.
        consensus: What they say to each other.
        folder: The folder of the checkpoints of this machine.
    """

    def __init__(self, processes: ProcessControl, consensus: RankConsensus, folder: Path) -> None:
        self._processes, self._consensus, self._folder = processes, consensus, folder
        self._copies: dict[str, Copies] = {}

    def held(self) -> dict[str, Any]:
        """Return what this machine has, on one process of it."""
        held: dict[str, Any] = {}
        for _, path in list_checkpoints(self._folder) if self._processes.is_local_main_process else ():
            try:
                manifest, sizes = read_manifest(path), file_sizes(path)
            except (CheckpointError, OSError):  # it is none
                continue
            lacks = [name for name, digest in manifest.files.items() if sizes.get(name) != digest.size]
            if len(lacks) < len(manifest.files):
                content = manifest.as_bytes()
                held[path.name] = [manifest.moment, hashlib.sha256(content).hexdigest(), len(content), lacks]
        return held

    def agree(self, held: list[dict[str, Any]]) -> list[tuple[Moment, Path]]:
        """Return the checkpoints that all machines have together, newest first, as the same on all ranks.

        Args:
            held: What `held` returned on each rank.
        """
        found: dict[tuple[Moment, str, str], Copies] = {}
        for rank, entries in enumerate(held):
            for name, (moment, digest, size, lacks) in entries.items():
                found.setdefault((tuple(moment), name, digest), Copies(size, {})).lacks[rank] = lacks
        whole = {key: copies for key, copies in found.items() if not _nobody_has(copies)}
        newest = sorted(whole, key=lambda key: (key[0], len(key[1]), key[1]), reverse=True)
        self._copies = {}
        for key in newest:
            self._copies.setdefault(key[1], whole[key])
        moments = {key[1]: key[0] for key in reversed(newest)}
        return [(moments[name], self._folder / name) for name in self._copies]

    def complete(self, folder: Path) -> None:
        """Send what machines lack of a checkpoint in memory, from a machine that has it.

        Args:
            folder: A checkpoint, which need not be in memory.

        Raises:
            CheckpointError: A machine has no room; raised on every process.

        Collective:
            Every process must call.
        """
        copies = self._copies.get(folder.name) if folder.parent == self._folder else None
        if copies is None:
            return
        here = self._processes.run.topology
        first = here.rank - here.local_rank
        mains = [0]
        if here.local_world_size < here.world_size:
            mains = sorted(set(self._consensus.exchange("resume: machines", first)))
        if all(copies.lacks.get(main) == [] for main in mains):
            return
        path, content = folder / MANIFEST, self._sent(folder / MANIFEST, copies.manifest_bytes, min(copies.lacks))
        manifest = parse_manifest(b"".join(content), path)
        stage, problems = list[StagedCheckpoint](), list[str]()
        if here.rank == first and copies.lacks.get(first) != []:
            problems += problems_of(lambda: stage.append(StagedCheckpoint(folder)))
        for name, digest in manifest.files.items():
            holders = [rank for rank, lacks in sorted(copies.lacks.items()) if name not in lacks]
            pieces = iter(()) if set(mains) <= set(holders) else self._sent(folder / name, digest.size, holders[0])
            for staged in stage if not problems else ():
                source = folder / name if first in holders else None
                problems += problems_of(partial(_write, staged, name, digest, source, pieces))
            deque(pieces, maxlen=0)  # who writes nothing takes part
        about = f"the checkpoint {folder} could not be brought from the memory of another machine:"
        try:
            self._consensus.require("resume: brought", about, problems)
            for staged in stage:
                problems += problems_of(partial(staged.seal, manifest)) or problems_of(staged.commit)
            self._consensus.require("resume: named", about, problems)
        except CheckpointError:
            for staged in stage:
                staged.abandon()
            raise

    def _sent(self, path: Path, size: int, source: int) -> Iterator[bytes]:
        """Yield the content of a file that one rank has, piece by piece, on every process."""
        transport = self._processes.run.transport
        content = b""
        with ExitStack() as stack:
            file = None
            for begin in range(0, size, PIECE):
                count = min(PIECE, size - begin)
                if transport.rank == source:
                    with suppress(OSError):  # the others notice by the hash
                        file = file or stack.enter_context(path.open("rb"))
                        content = file.read(count)
                piece = torch.frombuffer(bytearray(content.ljust(count, b"\0")), dtype=torch.uint8)
                yield transport.broadcast(piece, source).numpy().tobytes()


def moment_of(folder: Path) -> Moment:
    """Return when a checkpoint was written. One that cannot be read comes before all, to be found damaged."""
    try:
        return read_manifest(folder).moment
    except CheckpointError:
        return "~", 0


def _nobody_has(copies: Copies) -> set[str]:
    return set[str].intersection(*map(set, copies.lacks.values()))


def _write(
    stage: StagedCheckpoint, name: str, digest: FileDigest, source: Path | None, pieces: Iterator[bytes]
) -> None:
    """Write a file of a checkpoint as it comes, or link it if it is there."""
    if source is not None and stage.link(name, source, digest):
        return
    stage.write(name, pieces)
    if stage.files[name] != digest:
        raise CheckpointError(f"{name} has not come as it was written")
