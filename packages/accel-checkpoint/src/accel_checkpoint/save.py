"""Save the weights of a model as safetensors or in torch's own format, in one file or in shards with an index."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import BinaryIO

import torch

from accel_checkpoint.atomic_write import atomic_write
from accel_checkpoint.errors import CheckpointError
from accel_checkpoint.safetensors_header import ALIASES
from accel_checkpoint.save_object import write_pickle
from accel_checkpoint.tensor_file import Rows, serialize
from accel_checkpoint.weights.shard_plan import plan_shards
from accel_checkpoint.weights.sizes import size_in_bytes

SAFETENSORS = ("model", ".safetensors")
PICKLED = ("pytorch_model", ".bin")
INDEX = ".index.json"


def save_weights(
    state: Mapping[str, torch.Tensor],
    directory: str | Path,
    *,
    max_shard_size: int | str = "10GB",
    safe_serialization: bool = True,
    rows: Rows | None = None,
    writes: bool = True,
) -> Path:
    """Save weights, in one file or in shards with an index.

    Files get their names when all files are whole, and the index gets its name last. Then files of an earlier save in
    the same format are removed, and files of the other format stay. Tensors that share all memory are stored once. If a
    save fails while it renames files, the folder has the earlier weights, or none that can be opened.

    Args:
        state: Weights by name.
        directory: Folder to write into. It is made if it is missing.
        max_shard_size: Largest file, in bytes or as text such as "5GB".
        safe_serialization: Whether to write safetensors. False writes torch's own format.
        rows: Function that gathers a tensor which is divided over processes, some rows after the other. Then all
            processes call, and one of them writes.
        writes: Whether this process writes.

    Returns:
        The path that opens the weights: the file, or the index of its shards.

    Raises:
        CheckpointError: `directory` is a file, or a value is no tensor or does not fit the format.
        ValueError: The size is not valid.
        OSError: The disk refuses. The message says what to do.

    Collective:
        With `rows` every process that holds a part must call.
    """
    folder = Path(directory)
    wrong = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise CheckpointError(f"only tensors are weights, found others under: {', '.join(wrong)}")
    stem, suffix = SAFETENSORS if safe_serialization else PICKLED
    plan = plan_shards(state, stem=stem, suffix=suffix, max_bytes=size_in_bytes(max_shard_size))
    weight_map: dict[str, str] = {}
    contents: list[Iterator[memoryview]] = []
    writers: dict[Path, Callable[[BinaryIO], None]] = {}
    for file, tensors in plan.files.items():
        aliases = plan.aliases_in(file)
        if safe_serialization:
            metadata = {ALIASES: json.dumps(aliases)} if aliases else {}
            contents.append(serialize(tensors, metadata, rows))
            writers[folder / file] = methodcaller("writelines", contents[-1])
        else:
            tensors = tensors | {alias: tensors[name] for alias, name in aliases.items()}
            writers[folder / file] = partial(_write_pickled, tensors)
        weight_map |= dict.fromkeys(tensors, file)
    opens = next(iter(plan.files))
    if len(plan.files) > 1:
        opens = f"{stem}{suffix}{INDEX}"
        index = {"metadata": {"total_size": plan.total_bytes}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        writers[folder / opens] = methodcaller("write", text.encode())
    try:
        if writes:
            _write_all(folder, opens, writers, list(plan.files))
            _remove_stale(folder, stem, suffix, {path.name for path in writers})
    finally:
        # what was not written has to be gathered all the same: the other processes give their parts of it
        for _ in chain.from_iterable(contents) if rows is not None else ():
            pass
    return folder / opens


def _write_all(folder: Path, opens: str, writers: Mapping[Path, Callable[[BinaryIO], None]], shards: list[str]) -> None:
    """Write the files, the index `opens` last."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file: give save_model a folder")
    folder.mkdir(parents=True, exist_ok=True)
    # An index of the same shards would open a mixture if only some of them could be replaced.
    replaced = len(shards) > 1 and any((folder / file).exists() for file in shards)
    atomic_write(writers, remove_first=[folder / opens] if replaced else [])


def _write_pickled(tensors: Mapping[str, torch.Tensor], file: BinaryIO) -> None:
    """Write tensors with torch.save, which would write all the memory behind a view: a copy of the view is written."""
    on_cpu = {id(tensor): tensor.to("cpu").resolve_conj().resolve_neg() for tensor in tensors.values()}
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in on_cpu.values())
    for key, tensor in on_cpu.items():
        storage = tensor.untyped_storage()
        if users[storage.data_ptr()] > 1 or storage.nbytes() > tensor.nbytes or not tensor.is_contiguous():
            on_cpu[key] = tensor.clone(memory_format=torch.contiguous_format)
    write_pickle({name: on_cpu[id(tensor)] for name, tensor in tensors.items()}, file)


def shards_in(folder: Path, stem: str, suffix: str) -> list[Path]:
    """List the shards of one format in a folder, of any save, by name.

    Args:
        folder: The folder.
        stem: Beginning of the names, such as "model".
        suffix: End of the names, such as ".safetensors".
    """
    shard = re.compile(rf"{re.escape(stem)}-\d{{5}}-of-\d{{5}}{re.escape(suffix)}")
    return sorted(path for path in folder.iterdir() if shard.fullmatch(path.name))


def _remove_stale(folder: Path, stem: str, suffix: str, written: set[str]) -> None:
    """Remove the weights of an earlier save in this format, which a reader could mix up with this save."""
    single = folder / f"{stem}{suffix}"
    # An index goes before its shards.
    for path in (single, folder / f"{single.name}{INDEX}", *shards_in(folder, stem, suffix)):
        if path.name not in written:
            path.unlink(missing_ok=True)
