"""Find the checkpoints that can be loaded: the one that was asked for, or all of the project."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import final

from accel_checkpoint import CheckpointError, recover
from accel_checkpoint.hidden_folder import list_hidden_folders
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.retention import list_checkpoints
from accel_state import ProcessControl

from accel.checkpoint.consensus import RankConsensus
from accel.checkpoint.reading_lock import ReadingLock
from accel.configuration import ProjectConfiguration

#: how many checkpoints are listed if the one that was asked for is not there
SHOWN = 4


@final
class CheckpointFinder:
    """The finder of checkpoints, which finds the same on all ranks.

    Args:
        processes: The processes that take part.
        consensus: What they say to each other.
        project: The folder of the checkpoints.
    """

    def __init__(self, processes: ProcessControl, consensus: RankConsensus, project: ProjectConfiguration) -> None:
        self._processes = processes
        self._consensus = consensus
        self._project = project

    def unusable(self) -> list[str]:
        """Return why no checkpoint of the project could be written later, or nothing."""
        folder = self._project.checkpoints.absolute()
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir():
            return [f"{there} is a file, not a folder"]
        return [] if os.access(there, os.W_OK | os.X_OK) else [f"{there} may not be written to"]

    def chosen(self, input_dir: str | Path | None, locks: ExitStack) -> tuple[list[Path], bool]:
        """Return the folder that was asked for, or all of the project, newest first, and whether Accelerate wrote it.

        Args:
            input_dir: The folder that was asked for.
            locks: Takes a lock on the newest of the project, which then stays until all ranks have locked it.

        Raises:
            CheckpointError: The main process cannot look; raised on every process.

        Collective:
            Every process must call. What the main process finds counts.
        """
        chosen: list[str] = []
        by_accelerate = False
        problems: list[str] = []
        try:
            if input_dir is not None:
                folder = Path(input_dir).absolute()
                if self._processes.is_local_main_process:
                    recover(folder)
                chosen = [str(folder)]
                if not (folder / MANIFEST).exists():
                    from accel_names.checkpoint.accelerate_checkpoint import is_accelerates

                    by_accelerate = is_accelerates(folder)
            elif self._processes.is_main_process:
                paths = self._numbered() or self._numbered()  # another job may just have replaced the only one
                chosen = [str(path.absolute()) for path in paths]
                for path in paths[:1]:
                    locks.enter_context(ReadingLock(path, found=True))
        except (ValueError, OSError) as error:
            problems.append(str(error))
        told = self._consensus.exchange("load_state: where", [chosen, by_accelerate, problems])
        chosen, _, problems = told[0]
        if problems:
            raise CheckpointError("; ".join(problems))
        return [Path(path) for path in chosen], any(accelerates for _, accelerates, _ in told)

    def others(self, folder: Path) -> str:
        """Return words for the newest checkpoints of the project and beside a folder, or "" if there are none."""
        parents = {folder.parent, folder.parent / "checkpoints"}
        if self._project.project_dir is not None:
            parents.add(self._project.checkpoints.absolute())
        found = [path for parent in parents for path in parent.glob(f"[!.]*/{MANIFEST}")]
        newest = sorted(found, key=os.path.getmtime, reverse=True)[:SHOWN]
        return "; the newest checkpoints are:" + "".join(f"\n    {path.parent}" for path in newest) if newest else ""

    def _numbered(self) -> list[Path]:
        """Return the checkpoints of the project, newest first, with those that a save has not replaced after all."""
        parent = self._project.checkpoints
        for folder in list_hidden_folders(parent):
            if folder.kind == "old":
                recover(parent / folder.stem)
        return [path for _, path in reversed(list_checkpoints(parent))]
