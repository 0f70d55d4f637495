"""Name, size, place and tie single tensors of models, as scripts for Accelerate do."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accel_big import ModelHook
from accel_checkpoint.load import read_tensors
from torch import nn


def dtype_byte_size(dtype: Any) -> float:
    """Return the bytes of one number of a dtype: an eighth for bool, a half for four bits."""
    if dtype == torch.bool:
        return 1 / 8
    name = str(dtype.value if hasattr(dtype, "value") else dtype)
    if name.startswith("fp8"):
        return 1
    bits = re.search(r"[^\d](\d+)(_.*)?$", name)
    if bits is None:
        raise ValueError(f"dtype={dtype!r}: its name has no number of bits")
    return int(bits[1]) / 8 if int(bits[1]) < 8 else int(bits[1]) // 8


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Return the device, address and bytes of the memory of a tensor, which tensors that share it have in common."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr() or id(tensor), storage.nbytes()


def named_module_tensors(
    module: nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a module with their names, then its buffers.

    Args:
        module: The module.
        include_buffers: Whether to yield buffers.
        recurse: Whether to yield those of modules inside it as well.
        remove_non_persistent: Whether to leave out buffers that a state dict lacks.
    """
    yield from module.named_parameters(recurse=recurse)
    for name, buffer in module.named_buffers(recurse=recurse) if include_buffers else ():
        path, _, leaf = name.rpartition(".")
        if not remove_non_persistent or leaf not in module.get_submodule(path)._non_persistent_buffers_set:
            yield name, buffer


def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: int | str | torch.device,
    value: torch.Tensor | None = None,
    dtype: torch.dtype | str | None = None,
    fp16_statistics: None = None,
    tied_params_map: dict[int, dict[torch.device, torch.Tensor]] | None = None,
    non_blocking: bool = False,
    clear_cache: bool = True,
) -> None:
    """Put a parameter or buffer on a device.

    Args:
        module: The model.
        tensor_name: The name of the parameter or buffer in it.
        device: The device.
        value: New values; by default those that it has.
        dtype: The dtype of floating-point values; by default that of the tensor.
        fp16_statistics: None: these are of 8-bit layers, whose library loads them.
        tied_params_map: Copies on each device, by the address of the tensor that they are of. They are taken in
            place of a new copy, and a new copy is put in.
        non_blocking: Whether the copy may go on while the program does.
        clear_cache: Not used: unused memory is given back by `clear_device_cache`.

    Raises:
        ValueError: For a name that is none, a shape that differs, a tensor on meta that gets no values, and for
            `fp16_statistics`.
    """
    path, _, leaf = tensor_name.rpartition(".")
    owner = module.get_submodule(path)
    holders: list[dict[str, Any]] = [owner._parameters, owner._buffers]
    holder = next((known for known in holders if leaf in known), None)
    if holder is None:
        raise ValueError(
            f"{tensor_name} is neither a parameter nor a buffer of {type(module).__name__}; give a name of one"
        )
    if fp16_statistics is not None:
        raise ValueError(f"{tensor_name}: fp16_statistics are of 8-bit layers; their library loads them")
    before: torch.Tensor | None = holder[leaf]
    given = before if value is None else value
    if given is None:
        return
    place = torch.device(device)
    if given.is_meta and place.type != "meta":
        raise ValueError(f"{tensor_name} is on the meta device, which holds no numbers: give the values for {place}")
    if before is not None and given.shape != before.shape:
        raise ValueError(
            f"{tensor_name} has the shape {list(before.shape)}, and the values have {list(given.shape)}; give as many"
        )
    asked = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    kept = before.dtype if before is not None and value is not None else given.dtype
    wanted = (asked or kept) if given.dtype.is_floating_point else given.dtype
    copies = {} if tied_params_map is None else tied_params_map.get(given.data_ptr(), {})
    new = copies.get(place)
    if new is None:
        with torch.no_grad():
            new = given.detach().to(place, wanted, non_blocking=non_blocking)
        if tied_params_map is not None and given.data_ptr() in tied_params_map:
            copies[place] = new
    if isinstance(before, nn.Parameter):
        parameter = nn.Parameter(new, requires_grad=before.requires_grad and new.dtype.is_floating_point)
        parameter.__dict__.update(vars(before))
        holder[leaf] = parameter
    else:
        holder[leaf] = new


def retie_parameters(model: nn.Module, tied_params: Sequence[Sequence[str]]) -> None:
    """Tie the parameters of each group again, to the first of them that is not on the meta device."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for group in tied_params:
        held = [parameters[name] for name in group if name in parameters]
        shared = next((parameter for parameter in held if not parameter.is_meta), held[0] if held else None)
        for name in group if shared is not None else ():
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, shared)


def check_tied_parameters_on_same_device(tied_params: Iterable[Sequence[str]], device_map: Mapping[str, Any]) -> None:
    """Warn of parameters that are tied, and that a device map puts on several devices."""
    for group in tied_params:
        places = {name: _place_of(name, device_map) for name in group}
        if len(set(places.values())) > 1:
            words = ", ".join(f"{name} on {place}" for name, place in places.items())
            warnings.warn(f"tied parameters are on different devices, and will be parted: {words}", stacklevel=2)


def _place_of(name: str, device_map: Mapping[str, Any]) -> Any:
    while name not in device_map and name:
        name = name.rpartition(".")[0]
    return device_map.get(name)


def load_state_dict(
    checkpoint_file: str | Path, device_map: Mapping[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Read the weights in a file, each on its device, by their names.

    Args:
        checkpoint_file: A safetensors file, or a file of `torch.save`, from which no code is run.
        device_map: Devices by the name of a weight or of a module around it. The longest name counts, and "" is for
            all others. Weights without an entry, or with "disk", are on the CPU.

    Raises:
        CheckpointError: The file cannot be read.
    """
    weights = {}
    for name, tensor in read_tensors(Path(checkpoint_file)):
        place = _place_of(name, device_map or {})
        weights[name] = tensor if place in (None, "cpu", "disk") else tensor.to(place)
    return weights


def clean_state_dict_for_safetensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return weights that are contiguous and share no memory, with a warning of the names that are left out."""
    kept: dict[str, Any] = {}
    owners: dict[tuple[Any, ...], str] = {}
    shared = []
    for name, value in state_dict.items():
        if not isinstance(value, torch.Tensor):
            kept[name] = value
        elif owners.setdefault(id_tensor_storage(value), name) == name:
            kept[name] = value.contiguous()
        else:
            shared.append(name)
    if shared:
        warnings.warn(f"shared tensors are left out, as another name holds them: {', '.join(shared)}", stacklevel=2)
    return kept


@contextmanager
def align_module_device(module: nn.Module, execution_device: torch.device | str | None = None) -> Iterator[None]:
    """Put the own parameters of a module on a device in a block, if one is given, and its offloaded ones in any case.

    Args:
        module: The module.
        execution_device: The device; by default that of the forward for offloaded parameters.
    """
    hook: Any = module._hf_hook if has_offloaded_params(module) else ModelHook()
    hook.pre_forward(module)
    before = [(parameter, parameter.data) for parameter in module.parameters(recurse=False)]
    try:
        for parameter, data in before if execution_device is not None else ():
            parameter.data = data.to(execution_device)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data
        hook.post_forward(module, None)


def has_offloaded_params(module: nn.Module) -> bool:
    """Return whether a hook of the module puts its weights on their device during a forward."""
    return bool(getattr(getattr(module, "_hf_hook", None), "offload", False))


def get_non_persistent_buffers(module: nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Return the names of the buffers of a module that its state dict lacks.

    Args:
        module: The module.
        recurse: Whether those of modules inside it count as well.
        fqns: Whether to return them with the names of the modules that have them.
    """
    modules = module.named_modules() if recurse else [("", module)]
    pairs = [(name, buffer) for name, part in modules for buffer in part._non_persistent_buffers_set]
    return {f"{name}.{buffer}".lstrip(".") if fqns else buffer for name, buffer in pairs}
