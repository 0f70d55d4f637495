"""What scripts for Accelerate do with single tensors of models: name, size, place and tie them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import size_in_bytes
from accel_checkpoint.load import read_tensors
from torch import nn


def convert_file_size_to_int(size: int | str) -> int:
    """The bytes of a size such as "10GB".

    Raises: ValueError for other text.
    """
    return size_in_bytes(size)


def dtype_byte_size(dtype: Any) -> float:
    """The bytes of one number of a dtype: an eighth for bool, a half for four bits."""
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
    """The device, address and bytes of the memory of a tensor: equal for tensors that share memory."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr() or id(tensor), storage.nbytes()


def named_module_tensors(
    module: nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters of a module by their names, then its buffers, with `recurse` also those of modules inside it."""
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    unsaved = _unsaved_buffers(module, recurse=recurse) if remove_non_persistent else set()
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in unsaved:
            yield name, buffer


def _unsaved_buffers(module: nn.Module, *, recurse: bool) -> set[str]:
    modules = module.named_modules() if recurse else [("", module)]
    return {f"{path}.{name}".lstrip(".") for path, part in modules for name in part._non_persistent_buffers_set}


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
    """Puts a parameter or buffer on a device, with these values, or with those that it has.

    Values of a floating-point tensor come in `dtype`, or in the dtype that the tensor has. `tied_params_map` has the
    copies by the address of the tensor they are of, and is filled.

    Raises: ValueError for a name that is none, a shape that differs, a tensor on meta that gets no values, and for
    `fp16_statistics`, which are of 8-bit layers.
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
    """Makes the parameters of each group one again: the first of them that is not on the meta device."""
    for group in tied_params:
        held = {name: _parameter(model, name) for name in group}
        real = [parameter for parameter in held.values() if parameter is not None and not parameter.is_meta]
        shared = (real or [parameter for parameter in held.values() if parameter is not None])[:1]
        for name in group if shared else ():
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, shared[0])


def _parameter(model: nn.Module, name: str) -> nn.Parameter | None:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path)._parameters.get(leaf)


def check_tied_parameters_in_config(model: nn.Module) -> bool:
    """Whether the config of a transformers model says that its weights are tied."""
    config = getattr(model, "config", None)
    text: Any = config
    if config is not None and hasattr(config, "get_text_config"):
        text = config.get_text_config(decoder=True)
    tied = any(bool(getattr(each, "tie_word_embeddings", False)) for each in (config, text))
    coder = bool(getattr(config, "is_encoder_decoder", False) and getattr(config, "tie_encoder_decoder", False))
    return tied or coder or any(hasattr(module, "_tie_weights") for module in model.modules())


def check_tied_parameters_on_same_device(tied_params: Iterable[Sequence[str]], device_map: Mapping[str, Any]) -> None:
    """Warns of parameters that are one, and that a device map puts on several devices."""
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
    """The weights of a file, each on the device that the map gives its name, or on the CPU."""
    weights = {}
    for name, tensor in read_tensors(Path(checkpoint_file)):
        place = _place_of(name, device_map or {})
        weights[name] = tensor if place in (None, "cpu", "disk") else tensor.to(place)
    return weights


def clean_state_dict_for_safetensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The weights without names of memory that another name has, with a warning; each contiguous."""
    owners: dict[tuple[Any, ...], str] = {}
    for name, tensor in state_dict.items():
        if isinstance(tensor, torch.Tensor):
            owners.setdefault(id_tensor_storage(tensor), name)
    shared = [
        name
        for name, tensor in state_dict.items()
        if isinstance(tensor, torch.Tensor) and owners[id_tensor_storage(tensor)] != name
    ]
    if shared:
        warnings.warn(f"shared tensors are left out, as another name holds them: {', '.join(shared)}", stacklevel=2)
    return {
        name: tensor.contiguous() if isinstance(tensor, torch.Tensor) else tensor
        for name, tensor in state_dict.items()
        if name not in shared
    }


@contextmanager
def align_module_device(module: nn.Module, execution_device: torch.device | str | None = None) -> Iterator[None]:
    """In this block the own tensors of the module are on a device; after it they are where they were."""
    if execution_device is None:
        yield
        return
    own = list(module.named_parameters(recurse=False))
    before = {name: parameter.data for name, parameter in own}
    try:
        for _, parameter in own:
            parameter.data = parameter.data.to(execution_device)
        yield
    finally:
        for name, parameter in own:
            parameter.data = before[name]
