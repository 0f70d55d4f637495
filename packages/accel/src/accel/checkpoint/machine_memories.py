"""Find the checkpoints in the memories of all machines, and bring to each what it lacks of one."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
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
        #: the first ranks of all machines; and the files of each checkpoint that those have, with their sizes
        self._machines, self._has = list[int](), dict[Path, dict[int, dict[str, int]]]()

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
        found = dict[tuple[Any, ...], dict[int, dict[str, int]]]()
        for rank in self._machines:
            for *about, has in told[rank][0]:
                found.setdefault(tuple(about), {})[rank] = has
        whole = sorted(about for about, has in found.items() if len(set[str]().union(*has.values())) == about[-1])
        memory = [(about, checkpoint_path(self._folder, about[2])) for about in whole]
        self._has = {path: found[about] for about, path in memory}  # of two that have one number the newer counts
        both = zip(told[0][1], disk, strict=True), reversed(memory)  # of two that are as new the disk has the first
        return [path for _, path in heapq.merge(*both, key=lambda found: tuple(found[0][:2]), reverse=True)]

    def complete(self, folder: Path) -> None:
        """Let machines that lack something of a checkpoint get it, from those that have it in memory.

        A machine that cannot get it, as when it has no room, says so, and has what it had before. Another checkpoint of
        the same number goes.

        Args:
            folder: A checkpoint, which need not be in memory.

        Collective:
            Every process must call.
        """
        has, rank = self._has.get(folder, {}), self._processes.process_index
        sizes = {name: size for files in has.values() for name, size in files.items()}
        routes = [
            (next(source for source in has if name in has[source]), target, name)
            for target in self._machines
            # the manifest is the last: before it there is no checkpoint
            for name in sorted(sizes, key=lambda name: name == MANIFEST)
            if name not in has.get(target, ())
        ]
        if not routes:
            return

        def clear() -> None:
            for _, target, name in routes:
                if target == rank:
                    with suppress(OSError):
                        # the whole folder, if it is of another checkpoint or of none
                        Filesystem().remove(folder / name if rank in has else folder)

        clear()
        try:
            exchange_files(rank, routes, folder, sizes)
        except CheckpointError as error:
            clear()
            logger.warning("the checkpoint %s lacks files that other machines have: %s", folder, error)
        self._consensus.exchange("resume: brought", None)  # the other ranks of a machine read what its first one gets


def _moment_of(folder: Path) -> tuple[str, int]:
    """Return when a checkpoint was written. One that cannot be read comes before all, to be found damaged."""
    try:
        return read_manifest(folder).moment
    except CheckpointError:
        return "~", 0


def _held(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield what tells each checkpoint from others, in their order, the number of its files, and those here."""
    for number, path in list_checkpoints(folder):
        with suppress(CheckpointError):  # one without a manifest is none
            manifest, sizes = read_manifest(path), file_sizes(path)
            has = {name: file.size for name, file in manifest.files.items() if sizes.get(name) == file.size}
            has[MANIFEST] = sizes[MANIFEST]
            yield *manifest.moment, number, FileDigest.of([manifest.as_bytes()]).xxh3, len(manifest.files) + 1, has
