"""The manifest of a checkpoint: the size and hash of each file, and all state that is no tensor."""

from __future__ import annotations

import errno
import hashlib
import os
import reprlib
import stat
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any

from accel_checkpoint.bounded_json import MOST_BYTES, compact_json, parse_json, require_bounded
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.filesystem import FileDigest

MANIFEST = "manifest.json"
FORMAT, VERSION = "accel checkpoint", 3
#: the file with the states of many processes, a line of JSON each, filled up with blanks to one length
RANK_STATES = "accel.ranks.jsonl"
#: the most characters in the name of a file
LONGEST_NAME = 1024
#: the bytes of the line with the hash, and of the line feed before it
ENDING = 66


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint.

    Args:
        about: Description of the job that wrote it.
        files: Digest of each file.
        items: State of each object by its name.
        ranks: State of each process. Those of many processes are in a file of their own, of which each reads its line.
        parts: Files that together are a file of an item, if each process wrote a part. Their headers name the shape,
            dtype and offset of each piece.
    """

    about: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileDigest] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    ranks: list[Any] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)

    def as_bytes(self) -> bytes:
        """Return the content of the file: one line of JSON, and one line with its hash.

        Raises:
            CheckpointError: The manifest is so large that a reader would refuse it.
        """
        body = {
            "format": FORMAT,
            # earlier versions read what has no parts, or the states of processes here
            "version": 3 if RANK_STATES in self.files else 2 if self.parts else 1,
            "about": self.about,
            "files": {name: {"size": file.size, "xxh3": file.xxh3} for name, file in sorted(self.files.items())},
            "items": self.items,
            "ranks": self.ranks,
            **({"parts": self.parts} if self.parts else {}),
        }
        text = compact_json(body)
        try:
            require_bounded(text)
        except ValueError as error:
            raise CheckpointError(
                f"the state is too large for a manifest, {error}; give large states as tensors or NumPy arrays, which"
                " are in files beside it"
            ) from error
        return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()

    @property
    def processes(self) -> int:
        """The number of processes whose states there are."""
        world = self.about.get("world")
        if RANK_STATES not in self.files or type(world) is not int or world < 1:
            return len(self.ranks)
        return world

    def state_of_rank(self, folder: Path, rank: int) -> Any:
        """Return the state of a process, for which no other state is read from the file of many.

        Args:
            folder: The checkpoint.
            rank: Rank of the process.

        Raises:
            CheckpointError: The file is damaged; or as ValueError or LookupError.
        """
        if RANK_STATES not in self.files:
            return self.ranks[rank]
        width = self.files[RANK_STATES].size // self.processes
        with open_regular(folder / RANK_STATES) as file:
            return parse_json(os.pread(file.fileno(), min(width, MOST_BYTES + 1), rank * width).decode())

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files.values())

    @property
    def moment(self) -> tuple[str, int]:
        """The time at which it was written, and the steps until then. A newer checkpoint has a greater moment."""
        steps = self.about.get("steps")
        return str(self.about.get("written", "")), steps if isinstance(steps, int) else 0


def rank_lines(states: list[Any]) -> bytes:
    """Return the content of the file with the states of many processes."""
    lines = [compact_json(state).encode() for state in states]
    width = max(map(len, lines), default=0)
    return b"".join(line.ljust(width) + b"\n" for line in lines)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: It is missing, damaged or of a newer version, or names files outside of the folder. The message
            names the file.
    """
    path = folder / MANIFEST
    return parse_manifest(read_regular(path, MOST_BYTES), path)


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """Return the manifest that a file has.

    Args:
        content: The content of the file.
        path: The file, for messages.

    Raises:
        CheckpointError: As for `read_manifest`.
    """
    text, end = memoryview(content)[:-ENDING], content[-ENDING:]
    if f"\n{hashlib.sha256(text).hexdigest()}\n".encode() != end:
        raise CheckpointError(f"{path} is damaged: its content does not have the hash that it ends with")
    try:
        body = parse_json(str(text, "utf-8"))
        if body["format"] != FORMAT:
            raise CheckpointError(f"{path} is of the format {reprlib.repr(body['format'])}: expected {FORMAT!r}")
        version = body["version"]
        if type(version) is not int or not 1 <= version <= VERSION:
            newer = "; use a newer one" if type(version) is int and version > VERSION else ""
            raise CheckpointError(
                f"{path} is of version {reprlib.repr(version)}, and this accel-checkpoint reads the versions 1 up to"
                f" {VERSION}{newer}"
            )
        files = {name: _digest(path, name, entry) for name, entry in body["files"].items()}
        manifest = Manifest(body["about"], files, body["items"], body["ranks"], body.get("parts", {}))
        unknown = [name for names in manifest.parts.values() for name in names if name not in files]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a manifest: {type(error).__name__}: {error}") from error
    if not (isinstance(manifest.about, dict) and isinstance(manifest.items, dict) and isinstance(manifest.ranks, list)):
        raise CheckpointError(f"{path} is not a manifest: about and items are mappings, and ranks a list")
    if unknown:
        raise CheckpointError(f"{path} is not a manifest: it has no digest of the parts {reprlib.repr(unknown)}")
    wrong = [name for name, item in manifest.items.items() if not isinstance(item, dict)]
    if wrong:
        raise CheckpointError(f"{path} is not a manifest: {reprlib.repr(wrong)} of its items are not mappings")
    return manifest


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has a manifest that accel wrote, damaged or not."""
    beginning = compact_json({"format": FORMAT}).encode()[:-1]
    try:
        with open_regular(folder / MANIFEST) as file:
            return file.read(len(beginning)) == beginning
    except CheckpointError:
        return False


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        CheckpointError: It is missing, larger, a link, a pipe or a folder.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise CheckpointError(f"{path} has {size:,} bytes: more than {limit:,} are not read")
        return file.read(size)


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, without a buffer.

    Raises:
        CheckpointError: It is missing, a link, a pipe or a folder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except OSError as error:
        linked = " (it is a link)" if error.errno == errno.ELOOP else ""
        raise CheckpointError(f"{path} cannot be read{linked}: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file")
    return FileIO(descriptor)


def is_inside(name: str) -> bool:
    """Return whether the name of a file is relative, plain, and leads to no other folder."""
    parts = PurePosixPath(name).parts
    return (
        bool(parts)
        and not name.startswith("/")
        and ".." not in parts
        and "\0" not in name
        and len(name) < LONGEST_NAME
        and all(len(part.encode(errors="replace")) <= 255 and part.isprintable() for part in parts)
        and str(PurePosixPath(name)) == name
        and name != MANIFEST
    )


def _digest(path: Path, name: str, entry: Any) -> FileDigest:
    if not is_inside(name):
        raise CheckpointError(f"{path} names a file outside of its folder: {reprlib.repr(name)}")
    if type(entry["size"]) is not int or entry["size"] < 0 or type(entry["xxh3"]) is not str:
        raise CheckpointError(f"{path} is not a manifest: size and xxh3 of {name} are {reprlib.repr(entry)}")
    return FileDigest(entry["size"], entry["xxh3"])
