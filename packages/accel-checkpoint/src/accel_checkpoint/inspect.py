"""List, verify and compare checkpoints, in lines for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.manifest import MANIFEST, Manifest, read_manifest
from accel_checkpoint.piece_index import PIECE_INDEX
from accel_checkpoint.retention import list_checkpoints
from accel_checkpoint.stored_tensors import StoredTensors
from accel_checkpoint.tensor_file import TensorFile
from accel_checkpoint.verify import is_whole, require_whole, verify

SUFFIX = ".safetensors"
#: the most differences that are listed
LIMIT = 40


def run(name: str, paths: Sequence[str]) -> int:
    """Run a command on checkpoints, and print its lines.

    Args:
        name: "ls", "verify" or "diff".
        paths: A checkpoint or a folder of checkpoints. Two checkpoints for "diff".

    Returns:
        1 if a checkpoint is damaged or two differ, else 0.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    first, *others = (Path(path) for path in paths)
    if name == "verify":
        return int(any([print_verification(folder) for folder in checkpoints_in(first)]))
    lines = list(compare(first, *others) if name == "diff" else list_lines(first))
    _print(*lines or ["no difference"])
    return int(name == "diff" and bool(lines))


def _print(*lines: str) -> None:
    """Print lines without control characters, which a foreign file could send to the terminal."""
    for line in lines:
        print("".join(character if character.isprintable() else "?" for character in line))


def checkpoints_in(path: Path) -> list[Path]:
    """Return the checkpoint at a path, or the checkpoints in this folder or in its folder `checkpoints`, in order.

    Raises:
        CheckpointError: There is none.
    """
    if (path / MANIFEST).exists():
        return [path]
    for folder in (path, path / "checkpoints"):
        visible = [child for child in folder.iterdir() if not child.name.startswith(".")] if folder.is_dir() else []
        checkpoints = {child for child in visible if (child / MANIFEST).exists()}
        checkpoints |= {child for _, child in list_checkpoints(folder)}  # these may have no manifest
        if checkpoints:
            return sorted(checkpoints, key=_number_and_name)
    reason = "no checkpoint of accel is in it" if path.is_dir() else "there is no such folder"
    raise CheckpointError(f"{path}: {reason}")


def _number_and_name(folder: Path) -> tuple[int, str]:
    number = folder.name.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1, folder.name


def list_lines(path: Path) -> Iterator[str]:
    """Yield a line for each checkpoint in a folder, or the files and the state of the checkpoint at the path."""
    folders = checkpoints_in(path)
    if folders == [path]:
        yield from _contents(path, read_manifest(path))
        return
    yield f"{'':<24} {'written':<26} {'steps':>9} {'processes':>9} {'size':>11}  layout"
    for folder in folders:
        try:
            about, size = read_manifest(folder).about, read_manifest(folder).size
        except CheckpointError as error:
            yield f"{folder.name:<24} {error}"
            continue
        note = "" if is_whole(folder) else "  not whole: accel checkpoint verify says what is missing"
        written, steps, world = (str(about.get(name, "?")) for name in ("written", "steps", "world"))
        yield f"{folder.name:<24} {written:<26} {steps:>9} {world:>9} {_size(size):>11}  {_layout(about)}{note}"


def _contents(folder: Path, manifest: Manifest) -> Iterator[str]:
    about = {name: value for name, value in manifest.about.items() if name != "mesh"}
    yield f"{folder}: {', '.join(f'{name} {value}' for name, value in about.items())}, layout {_layout(manifest.about)}"
    yield "files:"
    for name, file in sorted(manifest.files.items()):
        yield f"  {name:<40} {_size(file.size):>11}"
    yield f"  {'in all':<40} {_size(manifest.size):>11}"
    if manifest.parts:
        yield "files in parts:"
    for name, parts in manifest.parts.items():
        sizes = [manifest.files[part].size for part in parts]
        span = f"{_size(min(sizes))} to {_size(max(sizes))}"
        yield f"  {name:<40} {_size(sum(sizes)):>11} in {len(parts)} parts of {span}"
    yield "state:"
    for name, entry in manifest.items.items():
        files = entry.get("files", [entry.get("file")])
        names = ", ".join(map(str, files)) if isinstance(files, list) else files
        yield f"  {name:<24} {entry.get('kind')!s:<24} {names}"
    yield f"random numbers of {manifest.processes} process(es)"


def _layout(about: dict[str, Any]) -> str:
    """Return the axes over which the processes were spread, with their sizes."""
    mesh = about.get("mesh")
    if not isinstance(mesh, dict):  # of a version that did not say
        return "?"
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items()) or "one process"


def print_verification(folder: Path) -> list[str]:
    """Verify a checkpoint, print the problems and return them. A terminal shows the progress."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        _print(f"{folder}: {error}")
        return [str(error)]
    problems = verify(folder, manifest, progress=_progress(folder, manifest.size)).problems
    problems = problems or list(_misfits(folder, manifest))
    _print(f"{folder}: {'damaged' if problems else 'whole'}, {len(manifest.files)} files, {_size(manifest.size)}")
    _print(*(f"  {problem}" for problem in problems))
    return problems


def _misfits(folder: Path, manifest: Manifest) -> Iterator[str]:
    for parts in manifest.parts.values():
        try:
            StoredTensors([TensorFile(folder / part) for part in parts])
        except CheckpointError as error:
            yield str(error)


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


def compare(first: Path, second: Path) -> Iterator[str]:
    """Yield a line for each difference between two whole checkpoints.

    Raises:
        CheckpointError: A checkpoint is damaged.
    """
    old, new = read_manifest(first), read_manifest(second)
    require_whole(first, old)
    require_whole(second, new)
    yield from _differences("", {"about": old.about, **old.items}, {"about": new.about, **new.items})
    yield from _differences("ranks", old.ranks, new.ranks)
    old_names, new_names = _logical(old), _logical(new)
    for name in sorted({*old_names, *new_names}):
        if name not in old_names or name not in new_names:
            yield f"{name}: {_only_in(name in old_names)}"
        elif [old.files[part] for part in old_names[name]] == [new.files[part] for part in new_names[name]]:
            continue
        elif name.endswith(SUFFIX):
            stored = StoredTensors([TensorFile(first / part) for part in old_names[name]])
            other = StoredTensors([TensorFile(second / part) for part in new_names[name]])
            lines = list(_tensor_differences(stored, other))
            yield from (f"{name}: {line}" for line in lines[:LIMIT])
            if len(lines) > LIMIT:
                yield f"{name}: and {len(lines) - LIMIT} tensors more"
        else:
            yield f"{name}: another content"


def _logical(manifest: Manifest) -> dict[str, list[str]]:
    """Return the files, with the parts that make them up: a file that is whole is its own part."""
    parts = {PIECE_INDEX, *(part for names in manifest.parts.values() for part in names)}
    return {**{name: [name] for name in manifest.files if name not in parts}, **manifest.parts}


def _only_in(first: bool) -> str:
    return f"only in the {'first' if first else 'second'}"


def _tensor_differences(first: StoredTensors, second: StoredTensors) -> Iterator[str]:
    for name in sorted({*first.names, *second.names}):
        if name not in first.names or name not in second.names:
            yield f"{name}: {_only_in(name in first.names)}"
        elif first.shape_and_dtype(name) != second.shape_and_dtype(name):
            yield f"{name}: {_words(*first.shape_and_dtype(name))} and {_words(*second.shape_and_dtype(name))}"
        else:
            old, new = first.read_like(name), second.read_like(name)
            if not _as_bytes(old).equal(_as_bytes(new)):
                yield f"{name}: {_distance(old, new)}"


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _distance(first: torch.Tensor, second: torch.Tensor) -> str:
    if first.is_floating_point():
        distance = (first.double() - second.double()).abs()
        return f"{int((distance != 0).sum())} of {first.numel()} numbers differ, by {distance.max().item():.3g} at most"
    return f"{int((first != second).sum())} of {first.numel()} numbers differ"


def _differences(path: str, first: Any, second: Any) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys([*first, *second]):
            inner = f"{path}.{key}".removeprefix(".")
            if key not in first or key not in second:
                yield f"{inner}: {_only_in(key in first)}"
            else:
                yield from _differences(inner, first[key], second[key])
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second) <= LIMIT:
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from _differences(f"{path}[{index}]", *pair)
    elif first != second:
        yield f"{path}: {_short(first)} and {_short(second)}"


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
