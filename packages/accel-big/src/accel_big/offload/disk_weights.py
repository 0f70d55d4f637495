"""Read weights that stay in their files, of which each tensor is mapped into memory while it is used."""

from __future__ import annotations

import json
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from accel_checkpoint import CheckpointError, save_weights, weight_files
from accel_checkpoint.atomic_write import atomic_write
from accel_checkpoint.bounded_json import read_json
from accel_checkpoint.tensor_file import ALIGNMENT, DTYPES, read_known_header

#: the file of an offload folder that says where each weight is; Accelerate's name and form
INDEX = "index.json"


class StoredWeight(NamedTuple):
    """The place of a tensor in a file, and the dtype to read it as.

    Args:
        file: File that has the tensor.
        name: Name of the tensor in the file.
        begin: Position of its first byte in the file.
        shape: Shape of the tensor.
        stored_dtype: Dtype in the file.
        dtype: Dtype to convert to.
    """

    file: Path
    name: str
    begin: int
    shape: tuple[int, ...]
    stored_dtype: torch.dtype
    dtype: torch.dtype

    @property
    def stored_size(self) -> int:
        """The size of the tensor in the file, in bytes."""
        return math.prod(self.shape) * self.stored_dtype.itemsize


@final
class DiskWeights(Mapping[str, torch.Tensor]):
    """A mapping of names to tensors that are read from files when they are asked for.

    The files are held open, so that the same files are read if others replace them.

    Args:
        stored: Place of each tensor.

    Raises:
        CheckpointError: A file cannot be opened, or is shorter than its weights.
    """

    def __init__(self, stored: Mapping[str, StoredWeight]) -> None:
        self.stored = dict(stored)
        self._files: dict[Path, int] = {}
        weakref.finalize(self, _close, self._files)
        for weight in self.stored.values():
            if weight.file not in self._files:
                try:
                    self._files[weight.file] = os.open(weight.file, os.O_RDONLY)
                except OSError as error:
                    raise CheckpointError(f"{weight.file}, which holds {weight.name}, is not there: {error}") from error
            length = os.fstat(self._files[weight.file]).st_size
            if weight.begin + weight.stored_size > length:
                raise CheckpointError(
                    f"{weight.file} is too short: {weight.name} ends at byte {weight.begin + weight.stored_size}"
                    f" of {length}"
                )

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a view of the file that lasts as long as the tensor, or a copy if its dtype changes."""
        weight = self.stored[name]
        if weight.stored_size == 0:
            return torch.empty(weight.shape, dtype=weight.dtype, device="cpu")
        skipped = weight.begin % mmap.ALLOCATIONGRANULARITY
        # pages that somebody writes into become the process's own: the file stays as it is
        region = mmap.mmap(
            self._files[weight.file],
            skipped + weight.stored_size,
            access=mmap.ACCESS_COPY,
            offset=weight.begin - skipped,
        )
        region.madvise(mmap.MADV_WILLNEED)
        numbers = torch.frombuffer(region, dtype=torch.uint8, offset=skipped)
        if weight.begin % weight.stored_dtype.itemsize:
            numbers = numbers.clone()  # a processor may refuse numbers that do not begin at a multiple of their width
        return numbers.view(weight.stored_dtype).view(weight.shape).to(weight.dtype)

    def views(self) -> frozenset[str]:
        """Return the names of tensors that compute on the CPU from the mapped file itself. Others are copied."""
        return frozenset(
            name
            for name, weight in self.stored.items()
            if weight.dtype == weight.stored_dtype and weight.begin % ALIGNMENT == 0
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __getstate__(self) -> Any:
        return self.stored

    def __setstate__(self, stored: Any) -> None:
        self.__init__(stored)  # opens the files in this process


def _close(files: dict[Path, int]) -> None:
    for descriptor in files.values():
        os.close(descriptor)


def stored_weights(file: Path) -> dict[str, StoredWeight]:
    """Return the places of the tensors of a safetensors file, also by the names that share them.

    Only the header is read.

    Raises:
        CheckpointError: The file is damaged, or has an unknown dtype.
    """
    header, found = read_known_header(file), {}
    for name, stored_name in header.stored_names().items():
        tensor = header.tensors[stored_name]
        dtype = DTYPES[tensor.dtype]
        found[name] = StoredWeight(file, stored_name, tensor.begin, tensor.shape, dtype, dtype)
    return found


def stored_in(folder: str | Path) -> dict[str, StoredWeight]:
    """Return the places of the tensors of a folder of safetensors."""
    return {name: weight for file in weight_files(folder) for name, weight in stored_weights(file).items()}


def write_index(folder: Path, stored: Mapping[str, StoredWeight]) -> None:
    """Record in a folder which file each weight is in. The weights themselves are not written."""
    index = {
        name: {
            "safetensors_file": str(weight.file.resolve()),
            "weight_name": weight.name,
            "dtype": str(weight.dtype).removeprefix("torch."),
        }
        for name, weight in stored.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
    atomic_write({folder / INDEX: methodcaller("write", text)})


def read_index(index: Mapping[str, Mapping[str, Any]], folder: Path | None) -> dict[str, StoredWeight]:
    """Return the weights that an index names. Accelerate's indexes, whose weights are `.dat` files, are read too.

    Args:
        index: Entry of each weight by name.
        folder: Folder of the `.dat` files.

    Raises:
        CheckpointError: A file is missing, or does not have the weight.
    """
    headers: dict[Path, dict[str, StoredWeight]] = {}
    found, problems = {}, []
    for name, entry in index.items():
        dtype = vars(torch).get(str(entry.get("dtype", "")).removeprefix("torch."))
        if entry.get("safetensors_file") is None:
            if folder is None or not isinstance(dtype, torch.dtype):
                problems.append(f"{name}: expected a safetensors_file, or a folder and a dtype, found {dict(entry)}")
            else:
                shape = tuple(entry["shape"])
                found[name] = StoredWeight(folder / f"{name}.dat", name, 0, shape, dtype, dtype)
            continue
        file, stored_name = Path(entry["safetensors_file"]), entry.get("weight_name", name)
        if file not in headers:
            headers[file] = stored_weights(file)
        if stored_name not in headers[file]:
            problems.append(f"{name}: {file} has no {stored_name}")
            continue
        weight = headers[file][stored_name]
        found[name] = weight._replace(dtype=dtype) if isinstance(dtype, torch.dtype) else weight
    if problems:
        raise CheckpointError("the index of offloaded weights does not fit its files:\n  " + "\n  ".join(problems))
    return found


def weights_in(folder: str | Path) -> dict[str, StoredWeight]:
    """Return the weights of an offload folder, or of a folder with a checkpoint in safetensors.

    Raises:
        CheckpointError: There are none.
    """
    index = Path(folder) / INDEX
    if index.is_file():
        try:
            return read_index(read_json(index), Path(folder))
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{index} is not an index of offloaded weights: {error}") from error
    return stored_in(folder)


def offload_state_dict(save_dir: str | Path, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Save tensors as safetensors in a folder, for `dispatch_model(offload_dir=save_dir)`.

    Args:
        save_dir: Folder to write into; made if it is missing.
        state_dict: Tensors by name.

    Raises:
        CheckpointError: A tensor does not fit the format.
        OSError: The disk refuses.
    """
    save_weights(state_dict, save_dir)
    write_index(Path(save_dir), stored_in(save_dir))
