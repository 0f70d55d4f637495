"""Find the checkpoints in the memories of all machines, and bring to each what it lacks of one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, final

from accel_checkpoint import CheckpointError, FileDigest, StagedCheckpoint, is_whole, read_manifest
from accel_checkpoint.filesystem import file_sizes
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.retention import list_checkpoints
from accel_checkpoint.staging import read_pieces
from accel_state import ProcessControl

from accel.checkpoint.consensus import RankConsensus, by_rank, problems_of
from accel.checkpoint.machine_files import exchange_files

#: when a checkpoint was written, and after how many steps
Moment = Sequence[Any]


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
        #: the first ranks of all machines; and of each checkpoint the files that each of those lacks that have it
        self._machines, self._lacks = list[int](), dict[Path, dict[int, list[str]]]()

    def merged_with(self, disk: list[Path]) -> list[Path]:
        """Return the checkpoints of the disk and those in memory of which nothing is lost, newest first.

        Args:
            disk: Those of the disk, newest first.

        Collective:
            Every process must call. What the main process finds on the disk counts.
        """
        held = [_held(path) for _, path in list_checkpoints(self._folder) if is_whole(path, parts=False)]
        mine = held if self._processes.is_local_main_process else None
        moments = [_moment_of(path) for path in disk] if self._processes.is_main_process else []
        told = self._consensus.exchange("resume: memory", [mine, moments])
        self._machines = [rank for rank, (entries, _) in enumerate(told) if entries is not None]
        found = dict[tuple[Any, ...], dict[int, list[str]]]()
        for rank in self._machines:
            for *about, lacks in told[rank][0]:
                found.setdefault(tuple(about), {})[rank] = lacks
        whole = sorted(about for about, lacks in found.items() if not set.intersection(*map(set, lacks.values())))
        self._lacks = {self._folder / about[-2]: found[about] for about in whole}
        memory = [(about[:2], self._folder / about[-2]) for about in reversed(whole)]
        return merged(list(zip(told[0][1], disk, strict=True)), memory)

    def complete(self, folder: Path) -> list[str]:
        """Send what machines lack of a checkpoint to them, from those that have it in memory.

        Args:
            folder: A checkpoint, which need not be in memory.

        Returns:
            Why a machine could not get it, as when it has no room, the same on all ranks; or nothing.

        Collective:
            Every process must call.
        """
        lacks, rank = self._lacks.get(folder, {}), self._processes.process_index
        needy = [machine for machine in self._machines if lacks and lacks.get(machine) != []]
        if not needy:
            return []
        begin = cache(partial(StagedCheckpoint, folder))
        receivers = set(needy) - {rank} if rank in lacks else set[int]()
        sources = [one for one in lacks if rank in needy and one != rank]

        def to_send() -> dict[int, dict[str, FileDigest]]:
            manifest = read_manifest(folder)
            files = {MANIFEST: FileDigest.of([manifest.as_bytes()]), **manifest.files}
            own = [name for name in files if rank == next(first for first in lacks if name not in lacks[first])]
            return {to: {name: files[name] for name in own if name in lacks.get(to, files)} for to in receivers}

        def bring() -> None:
            exchange_files(folder, receivers, to_send if receivers else dict, sources, begin)
            if rank not in needy:
                return
            stage = begin()
            if rank in lacks:
                manifest = read_manifest(folder)
                for name in manifest.files.keys() - stage.files.keys():
                    if not stage.link(name, folder / name, manifest.files[name]):
                        stage.write(name, read_pieces(folder / name), manifest.files[name])
                stage.seal(manifest)
            stage.commit()

        problems = problems_of(bring)
        if problems and rank in needy:
            problems_of(lambda: begin().abandon())
        lines = by_rank(self._consensus.exchange("resume: brought", problems))
        return ["it could not be brought from the memory of another machine:", *lines] if lines else []


def merged(disk: list[tuple[Moment, Path]], memory: list[tuple[Moment, Path]]) -> list[Path]:
    """Return the checkpoints of the disk and of memory, newest first. Of two that are as new the disk has the first.

    Args:
        disk: Those of the disk and when they were written, newest first.
        memory: Those in memory, newest first.
    """
    return [path for _, path in heapq.merge(disk, memory, key=lambda found: tuple(found[0]), reverse=True)]


def _moment_of(folder: Path) -> Moment:
    """Return when a checkpoint was written. One that cannot be read comes before all, to be found damaged."""
    try:
        return read_manifest(folder).moment
    except CheckpointError:
        return "~", 0


def _held(folder: Path) -> tuple[Any, ...]:
    """Return what tells a checkpoint from others, in their order, and the files that it lacks here."""
    manifest, sizes = read_manifest(folder), file_sizes(folder)
    lacks = [name for name, digest in manifest.files.items() if sizes.get(name) != digest.size]
    return *manifest.moment, len(folder.name), folder.name, FileDigest.of([manifest.as_bytes()]).xxh3, lacks
