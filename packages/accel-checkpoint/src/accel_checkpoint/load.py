"""Load the weights of a model from a file, an index or a folder, without running code from them."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.bounded_json import read_json
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.pieces import is_distributed, like
from accel_checkpoint.save import INDEX, PICKLED, SAFETENSORS, shards_in
from accel_checkpoint.tensor_file import TensorFile, is_utf8, read_known_header
from accel_checkpoint.unsaved_buffers import recompute_unsaved_buffers
from accel_checkpoint.weights.fill_by_blocks import fill_by_blocks
from accel_checkpoint.weights.materialise import divided_tensors, materialise, move, on_meta
from accel_checkpoint.weights.verdict import agree

T = TypeVar("T")
Shape = tuple[int, ...]


def weight_files(checkpoint: str | Path) -> list[Path]:
    """Return the files that hold the weights at a path.

    Args:
        checkpoint: A file, an index, or a folder with one of them.

    Raises:
        CheckpointError: There are no weights, a save was not finished, or the index names files that are missing or in
            another folder.
    """
    path = _opening(Path(checkpoint))[0]
    return _files_of_index(path) if path.name.endswith(".json") else [path]


def _opening(folder: Path) -> list[Path]:
    """Return a file itself, or what opens the weights of each format in a folder. The first one is read."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        reason = "it is neither a file nor a folder" if folder.exists() else "no such file or folder"
        raise CheckpointError(f"no weights at {folder}: {reason}")
    opening: list[Path] = []
    for stem, suffix in (SAFETENSORS, PICKLED):
        single, index = folder / f"{stem}{suffix}", folder / f"{stem}{suffix}{INDEX}"
        opening += [path for path in (single, index) if path.is_file()][:1]
        shards = shards_in(folder, stem, suffix)
        # Weights of the other format may be older than these shards.
        if shards and not opening:
            raise CheckpointError(
                f"no weights in {folder}: {shards[0].name} is there, but neither {single.name} nor {index.name} that"
                " opens it, so a save was not finished; save again, or give the path of another file"
            )
    if not opening and len(others := list(folder.glob(f"*{INDEX}"))) == 1:
        return others
    if not opening:
        names = ", ".join(
            f"{stem}{suffix}{ending}" for stem, suffix in (SAFETENSORS, PICKLED) for ending in ("", INDEX)
        )
        raise CheckpointError(f"no weights in {folder}: expected one of {names}")
    return opening


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: str | Path,
    device_map: Mapping[str, torch.device | str | int] | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    strict: bool = False,
) -> None:
    """Load weights into a model, one file at a time.

    Nothing changes before all files are checked. Optimizers keep the parameters of the model. If a folder has both
    formats, safetensors is read, with a warning.

    Args:
        model: Model to change. Of a sharded model each process reads its own part.
        checkpoint: A file, an index, or a folder with one of them.
        device_map: `{"": device}` moves the model to a device first. A model on the meta device gets its memory there,
            and a sharded one on the device of its mesh.
        dtype: Floating-point dtype to convert weights to.
        strict: Whether names that are only in the files or only in the model are an error. By default they are a
            warning. Weights that are missing for a model on the meta device are always an error.

    Raises:
        CheckpointError: Shapes differ, a file cannot be read, the model is on the meta device and there is no device
            map, or names differ with `strict`. It is raised on every process that holds a part.
        ValueError: The device map has several devices or the meta device. Or the dtype is not floating-point, or given
            for a sharded model.

    Collective:
        If the model is sharded, every process that holds a part must call.
    """
    device = None if device_map is None else _one_device(device_map)
    as_dtype = floating_dtype(dtype)
    divided = divided_tensors(model)
    if divided and as_dtype is not None:
        raise ValueError(f"dtype={dtype!r} for a sharded model: convert the model before it is sharded, by model.to()")
    place = torch.device(divided[0].device_mesh.device_type) if divided else device
    files, problem = _tried(lambda: _checked_files(model, checkpoint, place, sharded=bool(divided), strict=strict))
    agree(problem, divided)
    if as_dtype is not None:
        model.to(as_dtype)
    if place is not None:
        materialise(model, place, device)
    if device is not None and not divided:
        move(model, device)
    wanted = model.state_dict(keep_vars=True)
    _, problem = _tried(lambda: fill(files or (), wanted))
    agree(problem, divided)


def _checked_files(
    model: nn.Module, checkpoint: str | Path, device: torch.device | None, *, sharded: bool, strict: bool
) -> list[Path]:
    """Return the files of weights that fit the model, or raise."""
    empty = on_meta(model)
    if empty and device is None:
        raise CheckpointError(
            f"weights from {checkpoint} were to be loaded, but the model is on the meta device, which holds no numbers"
            f" ({', '.join(empty)}): give device_map={{'': device}} with the device it should be on"
        )
    files = weight_files(checkpoint)
    _warn_of_two_formats(Path(checkpoint))
    whole = [file.name for file in files if file.suffix != ".safetensors" and not zipfile.is_zipfile(file)]
    if sharded and whole:
        warnings.warn(
            f"{', '.join(whole)}: every process reads all of it, as torch before 1.6 wrote it; save it as safetensors,"
            " of which each reads its part",
            stacklevel=5,
        )
    if empty and device is not None:
        recompute_unsaved_buffers(model, device)
    stored: dict[str, Shape] = {}
    for file in files:
        stored |= read_shapes(file)
    require_fit(files[0].parent, stored, model.state_dict(keep_vars=True), on_meta(model), strict=strict)
    return files


def _tried(work: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return what the work returns, or why weights could not be loaded."""
    try:
        return work(), None
    except (CheckpointError, OSError) as error:
        return None, str(error)


def floating_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return the dtype that a name such as "bfloat16" means, or None for None.

    Raises:
        ValueError: It is not a floating-point dtype.
    """
    named = vars(torch).get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if dtype is None or (isinstance(named, torch.dtype) and named.is_floating_point):
        return named
    raise ValueError(f"dtype={dtype!r}: expected a floating-point dtype such as torch.bfloat16 or 'bfloat16'")


def _one_device(device_map: Mapping[str, torch.device | str | int]) -> torch.device:
    if set(device_map) != {""}:
        raise ValueError(f"device_map={dict(device_map)!r}: only the whole model on one device, {{'': device}}")
    device = torch.device(device_map[""])
    if device.type == "meta":
        raise ValueError(f"device_map={dict(device_map)!r}: the meta device holds no numbers; give a real one")
    return device


def _warn_of_two_formats(checkpoint: Path) -> None:
    read, *others = _opening(checkpoint)
    if others:
        warnings.warn(
            f"{checkpoint} holds weights in two formats: {read.name} is read, {others[0].name} is not;"
            " remove one of them, or give the path of a file",
            stacklevel=6,
        )


def require_fit(
    folder: Path,
    stored: Mapping[str, Shape],
    wanted: Mapping[str, torch.Tensor],
    unsaved: Mapping[str, torch.Tensor],
    *,
    strict: bool,
    problems: Sequence[str] = (),
    same: Callable[[torch.Tensor], object] | None = None,
) -> None:
    """Raise if weights do not fit a model. Names that only one of the two has are a warning, unless `strict` is set.

    Args:
        folder: The folder of the files.
        stored: The shapes of the weights, by name.
        wanted: The tensors of the model's state.
        unsaved: Tensors of the model. Files need not have those that its state lacks, but for those on the meta device.
        strict: Raise if names differ, too.
        problems: What does not fit for other reasons.
        same: Function whose result is equal for tensors that stay one memory when they are filled; None for those that
            have the same address.

    Raises:
        CheckpointError: It lists all that does not fit.
    """
    shared = {name: (same or _memory)(tensor) for name, tensor in wanted.items()}
    given = {shared[name] for name in stored if name in shared}
    missing = [name for name in wanted if name not in stored and shared.get(name) not in given]
    in_state = set(map(id, wanted.values()))
    unfilled = [name for name in missing if wanted[name].is_meta]
    unfilled += [name for name, tensor in unsaved.items() if tensor.is_meta and id(tensor) not in in_state]
    unexpected = [name for name in stored if name not in wanted]
    problems = [
        *problems,
        *(
            f"another shape: {name}: {list(shape)} in the file, {list(wanted[name].shape)} in the model"
            for name, shape in stored.items()
            if name in wanted and shape != tuple(wanted[name].shape)
        ),
    ]
    names = [f"missing from the files: {', '.join(missing)}"] if missing else []
    names += [f"not in the model: {', '.join(unexpected)}"] if unexpected else []
    if unfilled:
        problems.append(
            f"on the meta device and missing from the files: {', '.join(unfilled)}; make the model on a real device,"
            " where they get their first values, or load files that have them"
        )
    problems += names if strict else []
    if problems:
        raise CheckpointError(f"the weights in {folder} do not fit the model:\n  " + "\n  ".join(problems))
    if names:
        warnings.warn(f"weights in {folder}: {'; '.join(names)}", stacklevel=6)


def _memory(tensor: torch.Tensor) -> tuple[str, int]:
    # All tensors on meta and on XLA have the address 0, and parts of different tensors may; tied ones are one object.
    # A wrapper of other tensors has none.
    no_address = tensor.is_meta or is_distributed(tensor) or is_traceable_wrapper_subclass(tensor)
    no_address = no_address or tensor.layout != torch.strided
    address = 0 if no_address else tensor.data_ptr()
    return ("address", address) if address else ("object", id(tensor))


def read_shapes(file: Path) -> dict[str, Shape]:
    """Return the shape of each tensor in a weights file, by its name."""
    if file.suffix != ".safetensors":
        return {name: tuple(tensor.shape) for name, tensor in _read_pickled(file).items()}
    header = read_known_header(file)
    return {name: header.tensors[stored].shape for name, stored in header.stored_names().items()}


def fill(files: Iterable[Path], tensors: Mapping[str, torch.Tensor]) -> None:
    """Read what this process holds of tensors from weights files, one file after the other.

    Args:
        files: The files.
        tensors: Tensors to change, by name.
    """
    with torch.no_grad():
        for file in files:
            if file.suffix == ".safetensors":
                fill_by_blocks(file, tensors)
            else:
                for name, whole in _read_pickled(file).items():
                    if name in tensors:
                        like(whole, tensors[name], into=tensors[name])


def read_tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and tensor of each weight in a file. Tensors of a safetensors file are read one at a time."""
    if file.suffix != ".safetensors":
        yield from _read_pickled(file).items()
        return
    reader = TensorFile(file)
    for name, stored in reader.header.stored_names().items():
        yield name, reader[stored]


def read_plain(file: Path, content: BinaryIO | None = None) -> Any:
    """Return tensors, numbers, text and their containers from a file that torch.save wrote.

    Args:
        file: The file.
        content: Open file to read instead, if the object is only a part of `file`.

    Raises:
        CheckpointError: The file cannot be read without running code from it.
    """
    try:
        # torch maps only its own zip format into memory, of a path in UTF-8; before 1.6 torch wrote another format.
        mapped = content is None and is_utf8(str(file)) and zipfile.is_zipfile(file)
        return torch.load(content or file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        raise CheckpointError(f"{file} cannot be read as plain weights: {error}") from error


def _read_pickled(file: Path) -> dict[str, torch.Tensor]:
    state = read_plain(file)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{file} holds more than weights: expected a mapping of names to tensors")
    return state


def _files_of_index(index: Path) -> list[Path]:
    try:
        read = read_json(index)
        # Accelerate reads an index that is the map itself, too
        names = sorted(set((read["weight_map"] if "weight_map" in read or not read else read).values()))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of weights: {error}") from error
    if not names:
        raise CheckpointError(f"{index} names no files")
    outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if outside:
        raise CheckpointError(f"{index} names files outside its folder: {', '.join(map(str, outside))}")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(f"{index} names files that are missing: {', '.join(missing)}")
    return [index.parent / name for name in names]
