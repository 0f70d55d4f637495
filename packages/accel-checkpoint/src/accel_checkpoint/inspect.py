"""List and verify checkpoints, in lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.manifest import MANIFEST, Manifest, read_manifest
from accel_checkpoint.retention import list_checkpoints
from accel_checkpoint.stored_tensors import StoredTensors
from accel_checkpoint.tensor_file import TensorFile
from accel_checkpoint.verify import is_whole, verify


def run(name: str, path: Path, memory: Sequence[Path]) -> int:
    """Run a command on checkpoints, and print its lines.

    Args:
        name: "ls" or "verify".
        path: A checkpoint or a folder of checkpoints.
        memory: Checkpoints in memory of the same project, which "ls" lists too.

    Returns:
        1 if a checkpoint is damaged, else 0.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    if name == "verify":
        return int(any([print_verification(folder) for folder in checkpoints_in(path)]))
    _print(*list_lines(path, memory))
    return 0


def _print(*lines: str) -> None:
    """Print lines without control characters, which a foreign file could send to the terminal."""
    for line in lines:
        print("".join(character if character.isprintable() else "?" for character in line))


def checkpoints_in(path: Path, memory: Sequence[Path] = ()) -> list[Path]:
    """Return the checkpoint at a path, or the checkpoints in this folder or in its folder `checkpoints`, in order.

    Args:
        path: The checkpoint, or the folder.
        memory: Checkpoints of the same project in memory.

    Raises:
        CheckpointError: There is none, in memory neither.
    """
    if (path / MANIFEST).exists():
        return [path]
    for folder in (path, path / "checkpoints"):
        visible = [child for child in folder.iterdir() if not child.name.startswith(".")] if folder.is_dir() else []
        checkpoints = {child for child in visible if (child / MANIFEST).exists()}
        checkpoints |= {child for _, child in list_checkpoints(folder)}  # these may have no manifest
        if checkpoints:
            return sorted(checkpoints, key=_number_and_name)
    if memory:
        return []
    reason = "no checkpoint of accel is in it" if path.is_dir() else "there is no such folder"
    raise CheckpointError(f"{path}: {reason}")


def _number_and_name(folder: Path) -> tuple[int, str]:
    number = folder.name.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1, folder.name


def list_lines(path: Path, memory: Sequence[Path] = ()) -> Iterator[str]:
    """Yield a line for each checkpoint in a folder, or the files and the state of the checkpoint at the path.

    Args:
        path: The folder, or the checkpoint.
        memory: Checkpoints in memory, to list after those of the folder.
    """
    folders = checkpoints_in(path, memory)
    if folders == [path]:
        yield from _contents(path, read_manifest(path))
        return
    yield f"{'':<24} {'written':<26} {'steps':>9} {'processes':>9} {'size':>11}  layout"
    for folder in [*folders, *memory]:
        name = f"{folder.name} (memory)" if folder in memory else folder.name
        try:
            about, size = read_manifest(folder).about, read_manifest(folder).size
        except CheckpointError as error:
            yield f"{name:<24} {error}"
            continue
        note = "" if is_whole(folder) else "  not whole: accel checkpoint verify says what is missing"
        written, steps, world = (str(about.get(name, "?")) for name in ("written", "steps", "world"))
        yield f"{name:<24} {written:<26} {steps:>9} {world:>9} {in_words(size):>11}  {_layout(about)}{note}"


def _contents(folder: Path, manifest: Manifest) -> Iterator[str]:
    about = {name: value for name, value in manifest.about.items() if name not in ("mesh", "memory")}
    yield f"{folder}: {', '.join(f'{name} {value}' for name, value in about.items())}, layout {_layout(manifest.about)}"
    yield "files:"
    for name, file in sorted(manifest.files.items()):
        yield f"  {name:<40} {in_words(file.size):>11}"
    yield f"  {'in all':<40} {in_words(manifest.size):>11}"
    if manifest.parts:
        yield "files in parts:"
    for name, parts in manifest.parts.items():
        sizes = [manifest.files[part].size for part in parts]
        span = f"{in_words(min(sizes))} to {in_words(max(sizes))}"
        yield f"  {name:<40} {in_words(sum(sizes)):>11} in {len(parts)} parts of {span}"
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
    """Verify a checkpoint, print the problems and return them."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        _print(f"{folder}: {error}")
        return [str(error)]
    problems = verify(folder, manifest).problems or list(_misfits(folder, manifest))
    _print(f"{folder}: {'damaged' if problems else 'whole'}, {len(manifest.files)} files, {in_words(manifest.size)}")
    _print(*(f"  {problem}" for problem in problems))
    return problems


def _misfits(folder: Path, manifest: Manifest) -> Iterator[str]:
    for parts in manifest.parts.values():
        try:
            StoredTensors([TensorFile(folder / part) for part in parts])
        except CheckpointError as error:
            yield str(error)


def in_words(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
