"""What is in a checkpoint, as its manifest says: files with sizes and hashes, and all state that is no tensor."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.medium import Written

MANIFEST = "manifest.json"
FORMAT, VERSION = "accel checkpoint", 1
#: characters of the name of a file at most
LONGEST_NAME = 1024
#: bytes of a manifest at most
LONGEST = 1 << 28


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint.

    `about` says what wrote it, `files` what each file has to be, `items` has the state of each object under its name,
    and `ranks` that of each process.
    """

    about: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Written] = field(default_factory=dict)
    items: dict[str, Any] = field(default_factory=dict)
    ranks: list[Any] = field(default_factory=list)

    def as_bytes(self) -> bytes:
        """The file: JSON in one line, and its hash in the next."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "about": self.about,
            "files": {name: {"size": one.size, "xxh3": one.xxh3} for name, one in sorted(self.files.items())},
            "items": self.items,
            "ranks": self.ranks,
        }
        text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files.values())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint.

    Raises: CheckpointError that names the file, where it is missing, damaged, of a newer version, or names what is
    outside of the folder.
    """
    path = folder / MANIFEST
    content = read_regular(path, LONGEST)
    text, _, rest = content.rpartition(b"\n")[0].rpartition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != rest or not content.endswith(b"\n"):
        raise CheckpointError(f"{path} is damaged: its content does not have the hash that it ends with")
    try:
        body = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        if body["format"] != FORMAT:
            raise CheckpointError(f"{path} is of the format {body['format']!r}: expected {FORMAT!r}")
        if type(body["version"]) is not int or body["version"] > VERSION:
            raise CheckpointError(
                f"{path} is of version {body['version']}, and this accel-checkpoint reads up to {VERSION}; use a newer"
                " one"
            )
        files = {name: _written(path, name, one) for name, one in body["files"].items()}
        found = Manifest(body["about"], files, body["items"], body["ranks"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no manifest: {type(error).__name__}: {error}") from error
    if not (isinstance(found.about, dict) and isinstance(found.items, dict) and isinstance(found.ranks, list)):
        raise CheckpointError(f"{path} is no manifest: about and items are mappings, and ranks a list")
    odd = [name for name, one in found.items.items() if not isinstance(one, dict)]
    if odd:
        raise CheckpointError(f"{path} is no manifest: {', '.join(map(repr, odd))} of its items are no mappings")
    return found


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has a manifest of accel's, damaged or not."""
    begins = json.dumps({"format": FORMAT}, separators=(",", ":")).encode()[:-1]
    try:
        descriptor = open_regular(folder / MANIFEST)
    except CheckpointError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        return file.read(len(begins)) == begins


def read_regular(path: Path, most: int) -> bytes:
    """The content of a file that is no link, no pipe and no folder, and not larger than that."""
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise CheckpointError(f"{path} has {size:,} bytes: more than {most:,} are not read")
        return file.read(most + 1)


def open_regular(path: Path) -> int:
    """A descriptor of a file that is no link, no pipe and no folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except OSError as error:
        linked = " (it is a link)" if error.errno == errno.ELOOP else ""
        raise CheckpointError(f"{path} cannot be read{linked}: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is no regular file")
    return descriptor


def is_inside(name: str) -> bool:
    """Whether a name stays in the folder that it is meant in."""
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


def _written(path: Path, name: str, about: Any) -> Written:
    if not is_inside(name):
        raise CheckpointError(f"{path} names a file outside of its folder: {name!r}")
    if type(about["size"]) is not int or about["size"] < 0 or type(about["xxh3"]) is not str:
        raise CheckpointError(f"{path} is no manifest: size and xxh3 of {name} are {about!r}")
    return Written(about["size"], about["xxh3"])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(one for one in names if names.count(one) > 1)!r} twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"it has the number {name}, which JSON does not know")
