"""Load weights into a model whose parts are on several devices, or stay in their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from accel_checkpoint import CheckpointError, save_weights, weight_files
from accel_checkpoint import load_checkpoint_in_model as load_on_one_device
from accel_checkpoint.load import fill, floating_dtype, read_tensors, require_fit
from accel_checkpoint.unsaved_buffers import recompute_unsaved_buffers
from accel_checkpoint.weights.materialise import like_kind, named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.maps.check_map import DISK, check_device_map, real_device
from accel_big.maps.sizes import is_plain, may_be_offloaded
from accel_big.offload.disk_weights import StoredWeight, stored_in, stored_weights, write_index


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: str | Path,
    device_map: Mapping[str, int | str | torch.device] | None = None,
    offload_folder: str | Path | None = None,
    dtype: torch.dtype | str | None = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: list[str] | None = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> None:
    """Load weights onto the devices of a map.

    Nothing changes before the map and all files are checked. Weights on "disk" go to the meta device, and the offload
    folder gets an index for `dispatch_model`. Safetensors are not written again; weights of a pickle are.

    Args:
        model: Model to load into; it may be on the meta device.
        checkpoint: File, index or folder of weights.
        device_map: Device of each part by the name of a module or tensor. Default: tensors stay where they are; with
            `keep_in_fp32_modules` they go to the CPU.
        offload_folder: Folder for the index, if the map has "disk".
        dtype: Floating-point dtype to convert weights to.
        offload_state_dict: Has no effect, as no state dict is held in memory.
        offload_buffers: Leave buffers on disk too.
        keep_in_fp32_modules: Names of modules that `dtype` does not convert.
        offload_8bit_bnb: Has no effect, as quantised tensors stay where they are.
        strict: Refuse missing and unexpected weights, instead of a warning.
        full_state_dict: Has no effect.
        broadcast_from_rank0: Has no effect, as each process reads the files.

    Raises:
        CheckpointError: The files are damaged or do not fit the model. The error lists all problems.
        CannotRun: The map is wrong, or the folder is missing.
    """
    single = None if device_map is None or set(device_map) != {""} else device_map[""]
    if keep_in_fp32_modules is None and (device_map is None or (single is not None and single != DISK)):
        place = None if single is None else {"": real_device(single) if isinstance(single, int) else single}
        load_on_one_device(model, checkpoint, place, dtype=dtype, strict=strict)
        return
    stored = load_parts(
        model,
        checkpoint,
        device_map if device_map is not None else {"": "cpu"},
        offload_folder,
        dtype=dtype,
        offload_buffers=offload_buffers,
        keep_in_fp32=keep_in_fp32_modules or (),
        strict=strict,
        needs_folder=True,
    )
    if stored and offload_folder is not None:
        write_index(Path(offload_folder), stored)


def load_parts(
    model: nn.Module,
    checkpoint: str | Path,
    device_map: Mapping[str, int | str | torch.device],
    offload_folder: str | Path | None,
    *,
    dtype: torch.dtype | str | None,
    offload_buffers: bool,
    keep_in_fp32: Iterable[str] = (),
    strict: bool,
    needs_folder: bool = False,
) -> dict[str, StoredWeight]:
    """Load the weights that have a device, and return the places of those on disk.

    Args:
        model: Model to load into.
        checkpoint: File, index or folder of weights.
        device_map: Device of each part by name.
        offload_folder: Folder for weights of a pickle that are on disk.
        dtype: Floating-point dtype to convert weights to.
        offload_buffers: Leave buffers on disk too.
        keep_in_fp32: Names of modules that `dtype` does not convert.
        strict: Refuse missing and unexpected weights, instead of a warning.
        needs_folder: Refuse weights on disk without a folder, even if nothing has to be written.

    Raises:
        CheckpointError: The files are damaged or do not fit the model.
        CannotRun: The map is wrong, or the folder is missing.
        ValueError: The dtype is not floating-point.
    """
    placed = check_device_map(model, device_map, present=True)
    named = floating_dtype(dtype)
    files = weight_files(checkpoint)
    pickled = [file for file in files if file.suffix != ".safetensors"]
    disk = {name for name in may_be_offloaded(model, buffers=offload_buffers) if placed[name] == DISK}
    recompute_unsaved_buffers(model, torch.device("cpu"))
    tensors = named_tensors(model)
    stored = _checked(files, model, tensors, strict=strict)
    needed = "holds the index of weights on disk" if needs_folder else "holds weights that are on disk and in a pickle"
    if disk and offload_folder is None and (pickled or needs_folder):
        raise CannotRun(f"weights on disk from {checkpoint}", [f"give offload_folder: it {needed}"])
    fp32 = tuple(keep_in_fp32)
    dtypes = {name: _target(name, tensor, named, fp32) for name, tensor in tensors.items()}
    if disk and pickled and offload_folder is not None:
        written = {n: t for file in pickled for n, t in read_tensors(file) if n in disk}
        save_weights(written, offload_folder)
        stored |= {name: weight for name, weight in stored_in(offload_folder).items() if name in written}
    # of tied weights the files may have one name
    given = {id(tensors[name]): stored[name] for name in reversed(tensors) if name in stored}
    found = ((name, given.get(id(tensors[name]))) for name in disk)
    on_disk = {name: weight._replace(dtype=dtypes[name]) for name, weight in found if weight is not None}
    for name, tensor in {id(tensor): (name, tensor) for name, tensor in tensors.items()}.values():
        device = "meta" if name in on_disk else "cpu" if placed[name] == DISK else placed[name]
        if is_plain(tensor):
            _move(tensor, torch.device(device), dtypes[name])
    fill(files, {name: tensor for name, tensor in tensors.items() if name in stored and not tensor.is_meta})
    return on_disk


def _checked(
    files: list[Path], model: nn.Module, tensors: Mapping[str, torch.Tensor], *, strict: bool
) -> dict[str, StoredWeight]:
    """Return the place of each weight in the files. Raise CheckpointError with all that does not fit."""
    problems: list[str] = []
    stored: dict[str, StoredWeight] = {}
    for file in files:
        try:
            for name, weight in _weights_of(file).items():
                if name in stored:
                    problems.append(f"{name} is in {stored[name].file.name} and in {file.name}")
                stored[name] = weight
        except CheckpointError as error:
            problems.append(str(error))
    for name, weight in stored.items():
        tensor = tensors.get(name)
        if tensor is None or not is_plain(tensor):
            continue
        if weight.stored_dtype.is_floating_point != tensor.is_floating_point():
            problems.append(f"{name}: {weight.stored_dtype} in the file, {tensor.dtype} in the model")
    state = model.state_dict(keep_vars=True)
    wanted = {name: tensor for name, tensor in tensors.items() if name in stored or name in state}
    shapes = {name: weight.shape for name, weight in stored.items()}
    require_fit(files[0].parent, shapes, wanted, tensors, strict=strict, problems=problems, same=id)
    return stored


def _weights_of(file: Path) -> dict[str, StoredWeight]:
    if file.suffix == ".safetensors":
        return stored_weights(file)
    return {
        name: StoredWeight(file, name, 0, tuple(tensor.shape), tensor.dtype, tensor.dtype)
        for name, tensor in read_tensors(file)
    }


def _target(name: str, tensor: torch.Tensor, dtype: torch.dtype | None, fp32: tuple[str, ...]) -> torch.dtype:
    if dtype is None or not tensor.is_floating_point():
        return tensor.dtype
    return torch.float32 if any(f".{part}." in f".{name}." for part in fp32) else dtype


def _move(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> None:
    """Move a tensor to another device and dtype. It stays the same object, so that tied weights stay tied."""
    if tensor.device == device and tensor.dtype == dtype:
        return
    if not tensor.is_meta and device.type != "meta":
        tensor.data = tensor.data.to(device, dtype)
        return
    empty = like_kind(torch.empty_like(tensor, device=device, dtype=dtype, requires_grad=False), tensor)
    torch.utils.swap_tensors(tensor, empty)  # type: ignore[no-untyped-call] # of torch
