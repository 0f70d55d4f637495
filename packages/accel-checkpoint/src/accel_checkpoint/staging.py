"""Stages a checkpoint: writes it into a hidden folder, and renames the folder when it is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import final

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import FileDigest, Filesystem, explain, has_content
from accel_checkpoint.hidden_folder import hidden_path, lock_folder
from accel_checkpoint.manifest import MANIFEST, Manifest, is_checkpoint, is_inside, read_manifest
from accel_checkpoint.recovery import remove_replaced
from accel_checkpoint.tensor_file import serialize


@final
class StagedCheckpoint:
    """A checkpoint that is being written into a hidden folder beside its target.

    Until `commit` the target stays as it is, also if the process dies. Processes that write one checkpoint give the
    same `tag`; then one of them seals and commits it.
    """

    def __init__(self, target: Path, filesystem: Filesystem | None = None, *, tag: str | None = None) -> None:
        self.target = Path(os.path.abspath(target))
        self.filesystem = filesystem or Filesystem()
        self.files: dict[str, FileDigest] = {}
        require_replaceable(self.target)
        self.path = hidden_path(self.target, "saving", tag)
        self._lock = ExitStack()
        with self._explained():
            try:
                self.filesystem.make_folder(self.path)
            except FileExistsError:
                if tag is None or not self.path.is_dir():
                    raise
        with suppress(OSError):  # a file system without locks
            self._lock.enter_context(lock_folder(self.path, shared=True))

    def write_tensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Writes tensors into a safetensors file, which is on the disk when this returns."""
        self.write(name, serialize(tensors, metadata))

    def write(self, name: str, content: Iterable[memoryview | bytes]) -> None:
        """Writes a file, which is on the disk when this returns."""
        with self._explained():
            self.files[name] = self.filesystem.write(self.path / name, content)

    def link(self, name: str, source: Path, digest: FileDigest) -> bool:
        """Links a file of another checkpoint instead of writing it; False if that is not possible.

        Nothing may change the file later. Its digest is known to the caller.
        """
        if source.is_symlink() or not source.is_file() or source.stat().st_size != digest.size:
            return False
        if self.filesystem.link(self.path / name, source):
            self.files[name] = digest
            return True
        return False

    def adopt(self) -> None:
        """Adds the files that hooks have written into the hidden folder."""
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
                    self.files[name] = FileDigest.of(_read_pieces(path))

    def seal(self, manifest: Manifest) -> None:
        """Writes the manifest as the last file: then only the name is missing."""
        with self._explained():
            self.filesystem.write(self.path / MANIFEST, [manifest.as_bytes()])
            read_manifest(self.path)  # a manifest that cannot be read must not be committed
            self.filesystem.flush_folder(self.path)

    def commit(self, *, replace: bool = True) -> bool:
        """Gives the hidden folder the name of the target. Without `replace` an existing target stays: False.

        Raises: CheckpointError. The message tells if the checkpoint is there in spite of the error.
        """
        replaced: list[Path] = []
        with self._explained():
            try:
                while not self._take_name():  # again if another job has given the old checkpoint its name back
                    if not replace:
                        return False
                    replaced.append(hidden_path(self.target, "old"))
                    with suppress(FileNotFoundError):  # another save has moved it
                        self.filesystem.rename(self.target, replaced[-1])
            except BaseException:
                if replaced and replaced[-1].exists() and not has_content(self.target):
                    self.filesystem.rename(replaced[-1], self.target)
                raise
        self._lock.close()
        try:
            self.filesystem.flush_folder(self.target.parent)
            for old in replaced:
                remove_replaced(old, self.target, self.filesystem)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint {self.target} is there, but its disk may not keep it ({error}); look at the disk"
            ) from error
        return True

    def leave(self) -> None:
        """Lets go of a hidden folder that another process commits."""
        self._lock.close()

    def abandon(self) -> None:
        """Removes the hidden folder, as far as the disk allows."""
        self._lock.close()
        with suppress(OSError):
            if self.path.exists():
                self.filesystem.remove(self.path)

    def _take_name(self) -> bool:
        """Renames the hidden folder; False if the target is not empty."""
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
    """Checks that a save to the target would replace nothing but a checkpoint.

    Raises: CheckpointError if the target is a file, a link, or a folder with other files.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError(f"{target} is a file or a link: give save_state the path of a folder")
    if has_content(target) and not is_checkpoint(target):
        with suppress(FileNotFoundError):
            names = ", ".join(sorted(path.name for path in target.iterdir())[:5])
            raise CheckpointError(
                f"{target} has files that are not of a checkpoint of accel ({names}): give save_state another folder"
            )


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            yield piece
