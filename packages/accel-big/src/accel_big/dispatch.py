"""Run a model whose parts are on several devices, on the host, or in files."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_checkpoint.memory.pinned_memory import empty_pinned_like
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.hooks.align_devices import AlignDevicesHook, attach_align_device_hook
from accel_big.hooks.blocks import bring_arguments
from accel_big.hooks.model_hook import add_hook_to_module, hook_of
from accel_big.loading import load_checkpoint_in_model, load_parts
from accel_big.look_ahead import LookAhead
from accel_big.maps.balanced import get_balanced_memory
from accel_big.maps.check_map import DISK, check_device_map, real_device
from accel_big.maps.device_map import infer_auto_device_map
from accel_big.maps.memory import get_max_memory, room_for_files
from accel_big.maps.sizes import may_be_offloaded
from accel_big.offload.disk_weights import INDEX, DiskWeights, StoredWeight, offload_state_dict, read_index, weights_in
from accel_big.offload.guard import DispatchGuard

Place = int | str | torch.device
AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")
_CPU = torch.device("cpu")


def dispatch_model(
    model: nn.Module,
    device_map: Mapping[str, Place],
    main_device: Place | None = None,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    offload_dir: str | Path | None = None,
    offload_index: Mapping[str, Mapping[str, Any]] | None = None,
    offload_buffers: bool = False,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    force_hooks: bool = False,
) -> nn.Module:
    """Let the parts of a model compute on the devices of a map.

    Parts on "cpu" or "disk" compute on the main device. While a module computes, the weights of the next module are
    read. Offloaded weights have no gradients.

    Args:
        model: Model to dispatch. It is changed in place, and must not have hooks.
        device_map: Device of each part by the name of a module or tensor: an index, "cpu" or "disk". The longest name
            wins.
        main_device: Device for offloaded parts. Default: the first of the map that is no CPU, else the CPU.
        state_dict: Tensors to use in place of those of the model.
        offload_dir: Folder with the weights on disk. Tensors that the model or `state_dict` holds are written there
            first.
        offload_index: Index that says which file each weight is in, in place of the index in `offload_dir`.
        offload_buffers: Offload buffers too.
        skip_keys: Keys of mappings whose entries are not moved between devices.
        preload_module_classes: Names of classes whose modules get all of their weights at once.
        force_hooks: Add hooks even if the whole model is on one device.

    Returns:
        The same model.

    Raises:
        CannotRun: The map is wrong, or the model has hooks. The error lists all problems of the map.
        CheckpointError: Weights are missing on disk, or do not fit the model.
    """
    folder = None if offload_dir is None else Path(offload_dir)
    return _dispatched(
        model,
        device_map,
        {} if offload_index is None else read_index(offload_index, folder),
        main_device,
        state_dict,
        folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        preload=preload_module_classes,
        force_hooks=force_hooks,
    )


def _dispatched(
    model: nn.Module,
    device_map: Mapping[str, Place],
    stored: Mapping[str, StoredWeight],
    main_device: Place | None,
    state_dict: Mapping[str, torch.Tensor] | None,
    folder: Path | None,
    *,
    offload_buffers: bool,
    skip_keys: str | list[str] | None = None,
    preload: list[str] | None,
    force_hooks: bool = False,
    offload_cpu: bool = False,
    allowed: int | None = None,
) -> nn.Module:
    placed = check_device_map(model, device_map, present=True)
    if any(hook_of(module) for module in model.modules()):
        raise CannotRun("dispatch_model", ["the model has hooks already; remove_hook_from_submodules(model) first"])
    devices = [real_device(device) for device in device_map.values() if device != DISK]
    main = real_device(main_device) if main_device is not None else next((d for d in devices if d != _CPU), _CPU)
    tensors = named_tensors(model)
    may_go = may_be_offloaded(model, buffers=offload_buffers)
    numbers = {name: tensor.detach() for name, tensor in tensors.items() if not tensor.is_meta} | dict(state_dict or {})
    stored = _on_disk([name for name in may_go if placed[name] == DISK], tensors, numbers, stored, folder)
    host = [name for name in may_go if placed[name] == _CPU and (main != _CPU or offload_cpu)]
    at_hand = {*stored, *(name for name in host if name in numbers)}
    empty = [name for name, tensor in tensors.items() if tensor.is_meta and name not in at_hand]
    if empty:
        raise CheckpointError(f"on the meta device, without numbers: {', '.join(empty)}; load weights first")
    # of tied weights only one is kept
    kept = {id(tensors[name]): numbers[name] for name in host}
    if main != _CPU and torch.accelerator.is_available():
        pinned = zip(empty_pinned_like(list(kept.values())), kept.values(), strict=True)
        kept = dict(zip(kept, [buffer.copy_(tensor) for buffer, tensor in pinned], strict=True))
    kept = {key: tensor.to("cpu") for key, tensor in kept.items()}
    on_host = {name: kept[id(tensors[name])] for name in host}
    disk = DiskWeights(stored)
    weights: ChainMap[str, torch.Tensor] = ChainMap(on_host, disk)  # type: ignore[arg-type] # only read
    runs_on: dict[str, Place] = {name: main if device in (DISK, _CPU) else device for name, device in placed.items()}
    several = len(set(runs_on.values())) > 1
    if weights or several or force_hooks:
        if several or main != _CPU:
            around = AlignDevicesHook(io_same_device=True, skip_keys=skip_keys)
            add_hook_to_module(model, around)
            around.execution_device = main  # of the arguments: the model's own tensors are placed below
        for name, device in device_map.items() if several else ():
            if name and name not in tensors:
                elsewhere = device == DISK or real_device(device) == _CPU
                bring_arguments(model.get_submodule(name), main if elsewhere else device, skip_keys)
        if weights:
            add_hook_to_module(model, DispatchGuard(weights), append=True)
        held = {id(tensor): tensor.nbytes for tensor in tensors.values() if tensor.device == _CPU}
        room = room_for_files()
        room = room if allowed is None else min(room, allowed - sum(held.values()))
        # without a limit only pages stay that the system may take back, and buffers are written into: read anew
        may_stay = disk.views() if allowed is None else frozenset(disk)
        may_stay &= {name for name, _ in model.named_parameters(remove_duplicate=False)}
        attach_align_device_hook(
            model,
            runs_on,
            bool(weights),
            weights,
            offload_buffers,
            "",
            skip_keys,
            preload,
            look_ahead=LookAhead(room, may_stay),
        )
    elif runs_on:
        model.to(main)
    model.__dict__["hf_device_map"] = dict(device_map)
    return model


def _on_disk(
    names: list[str],
    tensors: Mapping[str, torch.Tensor],
    numbers: Mapping[str, torch.Tensor],
    known: Mapping[str, StoredWeight],
    folder: Path | None,
) -> dict[str, StoredWeight]:
    """Return the place on disk of each tensor, after writing those of which there are `numbers`."""
    found = dict(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        if folder is None:
            reason = f"give the folder they are in, or go to: {unknown[0]}, ..."
            raise CannotRun(f"{len(unknown)} weights on disk", [reason])
        written = {name: numbers[name] for name in unknown if name in numbers}
        if len(written) < len(unknown):
            found |= weights_in(folder)
        if written:
            if (len(written) < len(unknown) or not (folder / INDEX).is_file()) and _has_weights(folder):
                reason = f"{folder} has weights of its own, which would be replaced; give an empty folder"
                raise CannotRun(f"{len(written)} weights to be written", [reason])
            offload_state_dict(folder, written)
            found |= weights_in(folder)
    same = {id(tensors[name]): name for name in found if name in tensors}
    sources = {name: found.get(name) or found.get(same.get(id(tensors[name]), "")) for name in names}
    problems = [f"{name} is not in the files" for name, source in sources.items() if source is None]
    problems += [
        f"{name}: {list(source.shape)} in {source.file}, {list(tensors[name].shape)} in the model"
        for name, source in sources.items()
        if source is not None and source.shape != tuple(tensors[name].shape)
    ]
    if problems:
        raise CheckpointError("the weights on disk do not fit the model:\n  " + "\n  ".join(problems))
    return {name: source for name, source in sources.items() if source is not None}


def _has_weights(folder: Path) -> bool:
    try:
        return bool(weight_files(folder))
    except CheckpointError:
        return False


def cpu_offload(
    model: nn.Module,
    execution_device: Place | None = None,
    offload_buffers: bool = False,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    preload_module_classes: list[str] | None = None,
) -> nn.Module:
    """Keep all weights of a model on the CPU, and move them to the execution device while they are used.

    Args:
        model: Model to change in place.
        execution_device: Device to compute on. Default: that of the first parameter.
        offload_buffers: Offload buffers too.
        state_dict: Tensors to use in place of those of the model.
        preload_module_classes: Names of classes whose modules get all of their weights at once.

    Returns:
        The same model.

    Raises:
        CannotRun: There is no such device, or the model has hooks.
        CheckpointError: A tensor is on the meta device and not in `state_dict`.
    """
    return _dispatched(
        model,
        {"": "cpu"},
        {},
        _main(model, execution_device),
        state_dict,
        None,
        offload_buffers=offload_buffers,
        preload=preload_module_classes,
        offload_cpu=True,
    )


def _main(model: nn.Module, asked: Place | None) -> Place:
    own = next((tensor.device for tensor in model.parameters() if not tensor.is_meta), _CPU)
    return own if asked is None else asked


def disk_offload(
    model: nn.Module,
    offload_dir: str | Path,
    execution_device: Place | None = None,
    offload_buffers: bool = False,
    preload_module_classes: list[str] | None = None,
) -> nn.Module:
    """Keep all weights of a model in files, and read them while they are used.

    Args:
        model: Model to change in place.
        offload_dir: Folder of the files. Weights that the model holds are written there first.
        execution_device: Device to compute on. Default: that of the first parameter.
        offload_buffers: Offload buffers too.
        preload_module_classes: Names of classes whose modules get all of their weights at once.

    Returns:
        The same model.

    Raises:
        CannotRun: There is no such device, the model has hooks, or the folder has other weights.
        CheckpointError: Weights are missing in the folder, or do not fit the model.
    """
    return dispatch_model(
        model,
        {"": DISK},
        _main(model, execution_device),
        offload_dir=offload_dir,
        offload_buffers=offload_buffers,
        preload_module_classes=preload_module_classes,
    )


def load_checkpoint_and_dispatch(
    model: nn.Module,
    checkpoint: str | Path,
    device_map: str | Mapping[str, Place] | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: list[str] | None = None,
    offload_folder: str | Path | None = None,
    offload_buffers: bool = False,
    dtype: torch.dtype | str | None = None,
    offload_state_dict: bool | None = None,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    force_hooks: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> nn.Module:
    """Load weights onto the devices of a map, and dispatch the model.

    Safetensors need no offload folder, as weights on disk are read from the checkpoint itself.

    Args:
        model: Model to change in place; it may be on the meta device.
        checkpoint: File, index or folder of weights.
        device_map: Map as for `dispatch_model`, or a word. "auto" and "balanced" give accelerators equal shares,
            "balanced_low_0" gives the first as little as can be, and "sequential" fills the first. None only loads.
        max_memory: Limit of each device, in bytes or as text such as "10GB". Default: the free memory.
        no_split_module_classes: Names of classes whose modules stay on one device, if a word chooses the map.
        offload_folder: Folder for weights of a pickle that are on disk.
        offload_buffers: Offload buffers too.
        dtype: Floating-point dtype to convert weights to.
        offload_state_dict: Has no effect, as no state dict is held in memory.
        skip_keys: Keys of mappings whose entries are not moved between devices.
        preload_module_classes: Names of classes whose modules get all of their weights at once.
        force_hooks: Add hooks even if the whole model is on one device.
        strict: Refuse missing and unexpected weights, instead of a warning.
        full_state_dict: Has no effect.
        broadcast_from_rank0: Has no effect, as each process reads the files.

    Returns:
        The same model.

    Raises:
        CannotRun: The map or a device is wrong, or the model does not fit into the memory.
        CheckpointError: The files are damaged, or do not fit the model.
    """
    if device_map is None:
        load_checkpoint_in_model(model, checkpoint, dtype=dtype, strict=strict)
        return model
    chosen: Any = device_map
    if isinstance(device_map, str):
        if device_map not in AUTOMATIC:
            raise CannotRun(f"device_map={device_map!r}", [f"expected a mapping, or one of {', '.join(AUTOMATIC)}"])
        memory: Any = max_memory
        if device_map != "sequential":
            low = device_map == "balanced_low_0"
            memory = get_balanced_memory(model, max_memory, no_split_module_classes, dtype, low_zero=low)
        chosen = infer_auto_device_map(
            model, memory, no_split_module_classes, dtype=dtype, offload_buffers=offload_buffers
        )
    folder = None if offload_folder is None else Path(offload_folder)
    stored = load_parts(model, checkpoint, chosen, folder, dtype=dtype, offload_buffers=offload_buffers, strict=strict)
    return _dispatched(
        model,
        chosen,
        stored,
        None,
        None,
        folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        preload=preload_module_classes,
        force_hooks=force_hooks,
        allowed=None if max_memory is None else get_max_memory(max_memory).get("cpu", 0),
    )
