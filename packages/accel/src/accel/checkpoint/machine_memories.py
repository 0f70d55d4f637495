"""Find the checkpoints in the memories of all machines, and bring to each what it lacks of one."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from accel_checkpoint import CheckpointError, FileDigest, read_manifest
from accel_checkpoint.filesystem import Filesystem, file_sizes
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.retention import checkpoint_path, list_checkpoints
from accel_state import ProcessControl

from accel.checkpoint.consensus import RankConsensus
from accel.checkpoint.machine_files import exchange_files

logger = logging.getLogger("accel")


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
        mine = list(_held(self._folder)) if self._processes.is_local_main_process else None
        moments = [_moment_of(path) for path in disk] if self._processes.is_main_process else []
        told = self._consensus.exchange("resume: memory", [mine, moments])
        self._machines = [rank for rank, (held, _) in enumerate(told) if held is not None]
        found = dict[tuple[Any, ...], dict[int, list[str]]]()
        for rank in self._machines:
            for *about, lacks in told[rank][0]:
                found.setdefault(tuple(about), {})[rank] = lacks
        whole = sorted(about for about, lacks in found.items() if not set.intersection(*map(set, lacks.values())))
        memory = [(about, checkpoint_path(self._folder, about[2])) for about in whole]
        self._lacks = {path: found[about] for about, path in memory}  # of two that have one number the newer counts
        return merged(list(zip(told[0][1], disk, strict=True)), [*reversed(memory)])

    def complete(self, folder: Path) -> None:
        """Let machines that lack something of a checkpoint get it, from those that have it in memory.

        A machine that cannot get it, as when it has no room, says so, and has what it had before. Another checkpoint of
        the same number goes.

        Args:
            folder: A checkpoint, which need not be in memory.

        Collective:
            Every process must call.
        """
        lacks, rank = self._lacks.get(folder, {}), self._processes.process_index
        needy = [machine for machine in self._machines if lacks and lacks.get(machine) != []]
        if not needy:
            return
        sizes: Mapping[str, int] = {}
        if rank == min(lacks):
            files = read_manifest(folder).files.items()
            # the manifest is the last: before it there is no checkpoint
            sizes = {**{name: file.size for name, file in files}, MANIFEST: (folder / MANIFEST).stat().st_size}
        sizes = self._consensus.exchange("resume: files", sizes)[min(lacks)]
        routes = [
            (next(source for source in lacks if name not in lacks[source]), target, name)
            for target in needy
            for name in lacks.get(target, sizes)
        ]

        def clear() -> None:
            # the whole folder, if it is of another checkpoint or of none
            for name in lacks.get(rank, [""]) if rank in needy else ():
                with suppress(OSError):
                    Filesystem().remove(folder / name)

        clear()
        try:
            exchange_files(rank, routes, folder, sizes)
        except CheckpointError as error:
            clear()
            logger.warning("the checkpoint %s lacks files that other machines have: %s", folder, error)
        self._consensus.exchange("resume: brought", None)  # the other ranks of a machine read what its first one gets


def merged(disk: list[tuple[Sequence[Any], Path]], memory: list[tuple[Sequence[Any], Path]]) -> list[Path]:
    """Return the checkpoints of the disk and of memory, newest first. Of two that are as new the disk has the first.

    Args:
        disk: Those of the disk, newest first, each with when it was written and after how many steps.
        memory: Those in memory, alike, and what else they have.
    """
    return [path for _, path in heapq.merge(disk, memory, key=lambda found: tuple(found[0][:2]), reverse=True)]


def _moment_of(folder: Path) -> tuple[str, int]:
    """Return when a checkpoint was written. One that cannot be read comes before all, to be found damaged."""
    try:
        return read_manifest(folder).moment
    except CheckpointError:
        return "~", 0


def _held(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield what tells each checkpoint from others, in their order, and the files that it lacks here."""
    for number, path in list_checkpoints(folder):
        with suppress(CheckpointError):  # one without a manifest is none
            manifest, sizes = read_manifest(path), file_sizes(path)
            lacks = [name for name, digest in manifest.files.items() if sizes.get(name) != digest.size]
            yield *manifest.moment, number, FileDigest.of([manifest.as_bytes()]).xxh3, lacks
