"""What is in checkpoints, whether they are whole, and what differs between two: as lines for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.folder import require_whole
from accel_checkpoint.manifest import MANIFEST, Manifest, read_manifest
from accel_checkpoint.series import numbered
from accel_checkpoint.tensorfile import TensorFile
from accel_checkpoint.verify import damage, is_whole

SUFFIX = ".safetensors"
#: differences that are listed at most
MOST = 40


def run(name: str, paths: Sequence[str]) -> int:
    """Prints a report; exit code 1 where something is damaged or differs.

    Raises: CheckpointError where there is no checkpoint.
    """
    folders = [Path(one) for one in paths]
    if name == "ls":
        return _printed(listed(folders[0]), 0)
    if name == "verify":
        broken = 0
        for folder in checkpoints_in(folders[0]):
            broken += bool(verified(folder))
        return int(broken > 0)
    found = list(differences(folders[0], folders[1]))
    return _printed(found or ["no difference"], int(bool(found)))


def _printed(lines: Sequence[str] | Iterator[str], code: int) -> int:
    for line in lines:
        _say(line)
    return code


def _say(line: str) -> None:
    """Prints a line; what is in a file of somebody else's is not to steer the terminal."""
    print("".join(one if one.isprintable() else "?" for one in line))


def checkpoints_in(path: Path) -> list[Path]:
    """The checkpoint at a path, or those in that folder or in its folder `checkpoints`, by number and name.

    Raises: CheckpointError where there is none.
    """
    if (path / MANIFEST).exists():
        return [path]
    for folder in (path, path / "checkpoints"):
        inside = [one for one in folder.iterdir() if not one.name.startswith(".")] if folder.is_dir() else []
        cut = [one for _, one in numbered(folder)]  # one without a manifest is there too
        found = {one for one in inside if (one / MANIFEST).exists()} | set(cut)
        if found:
            return sorted(found, key=_place)
    why = "no checkpoint of accel is in it" if path.is_dir() else "there is no such folder"
    raise CheckpointError(f"{path}: {why}")


def _place(folder: Path) -> tuple[int, str]:
    number = folder.name.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1, folder.name


def listed(path: Path) -> Iterator[str]:
    """One line for each checkpoint in a folder; of a single one its files and its state."""
    folders = checkpoints_in(path)
    if folders == [path]:
        yield from _contents(path, read_manifest(path))
        return
    yield f"{'':<24} {'written':<26} {'steps':>9} {'processes':>9} {'size':>11}"
    for folder in folders:
        try:
            about, size = read_manifest(folder).about, read_manifest(folder).size
        except CheckpointError as error:
            yield f"{folder.name:<24} {error}"
            continue
        note = "" if is_whole(folder) else "  not whole: accel checkpoint verify says what is missing"
        written, steps, world = (str(about.get(name, "?")) for name in ("written", "steps", "world"))
        yield f"{folder.name:<24} {written:<26} {steps:>9} {world:>9} {_size(size):>11}{note}"


def _contents(folder: Path, manifest: Manifest) -> Iterator[str]:
    yield f"{folder}: {', '.join(f'{name} {value}' for name, value in manifest.about.items())}"
    yield "files:"
    for name, one in sorted(manifest.files.items()):
        yield f"  {name:<40} {_size(one.size):>11}"
    yield f"  {'in all':<40} {_size(manifest.size):>11}"
    yield "state:"
    for name, entry in manifest.items.items():
        kind, files = (
            (entry.get("kind"), entry.get("files", [entry.get("file")])) if isinstance(entry, dict) else ("?", [])
        )
        yield f"  {name:<24} {kind!s:<24} {', '.join(map(str, files)) if isinstance(files, list) else files}"
    yield f"random numbers of {len(manifest.ranks)} process(es)"


def verified(folder: Path) -> list[str]:
    """What is wrong with a checkpoint; printed, with the progress on a terminal."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        _say(f"{folder}: {error}")
        return [str(error)]
    found = damage(folder, manifest, progress=_progress(folder, manifest.size))
    _say(f"{folder}: {'damaged' if found else 'whole'}, {len(manifest.files)} files, {_size(manifest.size)}")
    for line in found:
        _say(f"  {line}")
    return found


def _progress(folder: Path, total: int) -> Callable[[int], None] | None:
    if not sys.stderr.isatty():
        return None
    read = 0

    def step(count: int) -> None:
        nonlocal read
        read += count
        end = "\r" if read < total else "\r\x1b[K"
        print(f"{folder.name}: {100 * read / max(total, 1):3.0f} %", end=end, file=sys.stderr, flush=True)

    return step


def differences(one: Path, other: Path) -> Iterator[str]:
    """What differs between two checkpoints, which have to be whole.

    Raises: CheckpointError where one is not.
    """
    manifests = read_manifest(one), read_manifest(other)
    for folder, manifest in zip((one, other), manifests, strict=True):
        require_whole(folder, manifest)
    first, second = manifests
    yield from _trees("about", first.about, second.about)
    for name in dict.fromkeys([*first.items, *second.items]):
        if name not in second.items or name not in first.items:
            yield f"{name}: only in {one if name in first.items else other}"
        else:
            yield from _trees(name, first.items[name], second.items[name])
    yield from _trees("ranks", first.ranks, second.ranks)
    yield from _tensors((one, first), (other, second))


def _tensors(one: tuple[Path, Manifest], other: tuple[Path, Manifest]) -> Iterator[str]:
    for name in sorted(one[1].files.keys() | other[1].files.keys()):
        here, there = one[1].files.get(name), other[1].files.get(name)
        if here is None or there is None:
            yield f"{name}: only in {one[0] if here else other[0]}"
        elif here != there and name.endswith(SUFFIX):
            yield from _tensors_of(name, TensorFile(one[0] / name), TensorFile(other[0] / name))
        elif here != there:
            yield f"{name}: another content"


def _tensors_of(name: str, one: TensorFile, other: TensorFile) -> Iterator[str]:
    said = 0
    for key in sorted({*one.names, *other.names}):
        if key not in one.names or key not in other.names:
            line = f"only in the {'first' if key in one.names else 'second'}"
        elif one.about(key) != other.about(key):
            line = f"{_words(*one.about(key))} and {_words(*other.about(key))}"
        elif _as_bytes(one[key]).equal(_as_bytes(other[key])):
            continue
        else:
            line = _how_far(one[key], other[key])
        said += 1
        if said <= MOST:
            yield f"{name}: {key}: {line}"
    if said > MOST:
        yield f"{name}: and {said - MOST} tensors more"


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _how_far(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.is_floating_point():
        apart = (one.double() - other.double()).abs()
        return f"{int((apart != 0).sum())} of {one.numel()} numbers differ, by {apart.max().item():.3g} at most"
    return f"{int((one != other).sum())} of {one.numel()} numbers differ"


def _trees(path: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if key not in one or key not in other:
                yield f"{path}.{key}: only in the {'first' if key in one else 'second'}"
            else:
                yield from _trees(f"{path}.{key}", one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and len(one) <= MOST:
        for place, (here, there) in enumerate(zip(one, other, strict=True)):
            yield from _trees(f"{path}[{place}]", here, there)
    elif one != other:
        yield f"{path}: {_short(one)} and {_short(other)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _words(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
