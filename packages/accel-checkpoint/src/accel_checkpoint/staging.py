"""Stage a checkpoint: write it into a hidden folder, and rename the folder when it is whole."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import final

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import FileDigest, Filesystem, explain, file_sizes, has_content
from accel_checkpoint.hidden_folder import hidden_path, lock_folder
from accel_checkpoint.manifest import MANIFEST, Manifest, is_checkpoint, is_inside, read_manifest
from accel_checkpoint.recovery import remove_replaced
from accel_checkpoint.tensor_file import serialize

#: seconds in which a hidden folder is made again if collectors of other jobs take it before it is locked
MADE_WITHIN_S = 10.0


@final
class StagedCheckpoint:
    """A checkpoint that is being written into a hidden folder beside its target.

    Until `commit` the target stays as it is, also if the process dies.

    Args:
        target: Path of the checkpoint.
        filesystem: Disk to write to. A test gives another.
        tag: Result of `new_tag` that all processes give which write this checkpoint. Then one of them seals and commits
            it.

    Raises:
        CheckpointError: The target is something else than a checkpoint, or the disk refuses.
    """

    def __init__(self, target: Path, filesystem: Filesystem | None = None, *, tag: str | None = None) -> None:
        self.target = Path(os.path.abspath(target))
        self.filesystem = filesystem or Filesystem()
        self.files: dict[str, FileDigest] = {}
        require_replaceable(self.target)
        self._lock = ExitStack()
        with self._explained():
            until = time.monotonic() + MADE_WITHIN_S
            while not self._make_locked(tag):
                if time.monotonic() > until:
                    raise CheckpointError(f"other jobs remove {self.path} when it is made: save to another folder")
                time.sleep(0.001)

    def write_tensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Write tensors into a safetensors file, which is on the disk when this returns.

        Args:
            name: Name of the file in the checkpoint.
            tensors: Tensors by name.
            metadata: Text for the header of the file.
        """
        self.write(name, serialize(tensors, metadata))

    def write(self, name: str, content: Iterable[memoryview | bytes]) -> None:
        """Write a file, which is on the disk when this returns.

        Args:
            name: Name of the file in the checkpoint.
            content: Its bytes, piece by piece.
        """
        with self._explained():
            if not (self.path / name).parent.is_dir():
                self.filesystem.make_folder((self.path / name).parent)
            self.files[name] = self.filesystem.write(self.path / name, content)

    def link(self, name: str, source: Path, digest: FileDigest) -> bool:
        """Link a file of another checkpoint instead of writing it.

        Args:
            name: Name of the file in this checkpoint.
            source: The file, which nothing may change later.
            digest: Digest that the file is known to have.

        Returns:
            False if that is not possible.
        """
        if source.is_symlink() or not source.is_file() or source.stat().st_size != digest.size:
            return False
        if not self.filesystem.link(self.path / name, source):
            return False
        with suppress(CheckpointError):
            if read_manifest(source.parent).files.get(source.name) == digest:
                self.files[name] = digest
                return True
        self.filesystem.remove(self.path / name)  # another job has replaced that checkpoint by its own
        return False

    def adopt(self) -> None:
        """Add the files that hooks have written into the hidden folder."""
        with self._explained():
            for path in sorted(self.path.rglob("*")):
                name = path.relative_to(self.path).as_posix()
                if not is_inside(name):
                    raise CheckpointError(f"{name!r} cannot be the name of a file of a checkpoint: give it a plain one")
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    raise CheckpointError(
                        f"{name} of the checkpoint is a link, or not a regular file: write files into it"
                    )
                if path.is_dir():
                    self.filesystem.flush_folder(path)
                elif name not in self.files:
                    self.filesystem.flush_file(path)
                    self.files[name] = FileDigest.of(read_pieces(path))

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest as the last file, so that only the name is missing."""
        with self._explained():
            self.filesystem.write(self.path / MANIFEST, [manifest.as_bytes()])
            read_manifest(self.path)  # a manifest that cannot be read must not be committed
            self.filesystem.flush_folder(self.path)

    def commit(self, *, replace: bool = True) -> bool:
        """Give the hidden folder the name of the target.

        Args:
            replace: Whether an existing target is replaced.

        Returns:
            False if the target exists and stays.

        Raises:
            CheckpointError: The disk refuses. The message says if the checkpoint is there in spite of the error.
        """
        replaced: list[Path] = []
        with self._explained():
            self._require_all()
            try:
                while not self._take_name():  # again if another job has given the old checkpoint its name back
                    if not replace:
                        return False
                    replaced.append(hidden_path(self.target, "old"))
                    with suppress(OSError):
                        self._lock.enter_context(lock_folder(self.target, shared=True))
                    with suppress(FileNotFoundError):  # another save has moved it
                        self.filesystem.rename(self.target, replaced[-1])
            except BaseException:
                if replaced and replaced[-1].exists() and not has_content(self.target):
                    self.filesystem.rename(replaced[-1], self.target)
                raise
        try:
            self.filesystem.flush_folder(self.target.parent)
            for old in replaced:
                remove_replaced(old, self.target, self.filesystem)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self.target} is there, but its disk may not keep it ({error}); look at the disk"
            ) from error
        finally:
            self._lock.close()
        return True

    def leave(self) -> None:
        """Unlock a hidden folder that another process commits."""
        self._lock.close()

    def abandon(self) -> None:
        """Remove the hidden folder, as far as the disk allows."""
        self._lock.close()
        with suppress(OSError):
            if self.path.exists():
                self.filesystem.remove(self.path)

    def _make_locked(self, tag: str | None) -> bool:
        """Make the hidden folder and lock it, or return False if another job has taken it for abandoned in between."""
        self.path = hidden_path(self.target, "saving", tag)
        try:
            self.filesystem.make_folder(self.path)
        except FileExistsError:
            if tag is None:
                raise
        try:
            self._lock.enter_context(lock_folder(self.path, shared=True))
        except (BlockingIOError, FileNotFoundError):
            return False
        return True

    def _require_all(self) -> None:
        """Raise if a file that was written is gone: where locks are invisible, another job may have removed it."""
        sizes = file_sizes(self.path) if self.path.is_dir() else {}
        gone = [name for name, digest in self.files.items() if sizes.get(name) != digest.size]
        if gone:
            raise CheckpointError(
                f"no checkpoint was written to {self.target}: {', '.join(gone[:5])} of {self.path} disappeared before"
                " it was whole; what was there before stays; save again"
            )

    def _take_name(self) -> bool:
        """Rename the hidden folder, or return False if the target is not empty."""
        if has_content(self.target):
            return False
        try:
            self.filesystem.rename(self.path, self.target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process was faster
                return False
            raise
        return True

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = f"no checkpoint could be written to {self.target} {explain(error, self.target)}"
            raise CheckpointError(words) from error


def require_replaceable(target: Path) -> None:
    """Raise if a save to a path would replace anything but a checkpoint.

    Raises:
        CheckpointError: The target is a file, a link, or a folder with other files.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is a file or a link: give save_state the path of a folder")
    if has_content(target) and not is_checkpoint(target):
        with suppress(FileNotFoundError):
            names = ", ".join(sorted(path.name for path in target.iterdir())[:5])
            raise CheckpointError(
                f"{target} has files that are not of a checkpoint of accel ({names}): give save_state another folder"
            )


def read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, piece by piece."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            yield piece
