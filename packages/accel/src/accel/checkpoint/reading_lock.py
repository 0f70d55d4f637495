"""Keep a checkpoint from being removed while it is loaded, and notice if another job moves it all the same."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self, final

from accel_checkpoint import recover
from accel_checkpoint.hidden_folder import LockedFolder, lock_folder


@final
class ReadingLock:
    """A shared lock on a checkpoint in a block: the retention of other jobs of this machine leaves it there.

    A job that saves to the same path replaces the checkpoint in spite of the lock, and so does a job on another
    machine or on a disk without locks: `was_moved` says so. `found` says that this process has seen the checkpoint.
    """

    def __init__(self, folder: Path, *, found: bool) -> None:
        self.folder, self._found = folder, found
        self._stack = ExitStack()
        self._locked: list[LockedFolder] = []
        self._gone = False

    def __enter__(self) -> Self:
        try:
            self._locked.append(self._stack.enter_context(lock_folder(self.folder, shared=True)))
        except (BlockingIOError, FileNotFoundError):  # another job removes it now, or it is not there
            self._gone = True
        except OSError:  # the verification says what is wrong
            pass
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def was_moved(self) -> bool:
        """Return whether another job has removed or replaced the checkpoint since it was found or locked."""
        if self._gone:
            return self._found or recover(self.folder) or self.folder.is_dir()
        return not all(locked.is_there() for locked in self._locked)
