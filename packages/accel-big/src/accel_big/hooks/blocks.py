"""Brings the arguments of blocks to the devices where the blocks compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accel_state.errors import CannotRun
from torch import nn

from accel_big.hooks.align_devices import AlignDevicesHook, Place, attach_align_device_hook
from accel_big.hooks.model_hook import add_hook_to_module
from accel_big.maps.check_map import real_device


def attach_align_device_hook_on_blocks(
    module: nn.Module,
    execution_device: Place | Mapping[str, Place] | None = None,
    offload: bool | Mapping[str, bool] = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    tied_params_map: Mapping[int, Any] | None = None,
) -> None:
    """Adds hooks to the blocks of a module that the mappings name: arguments and weights go to the block's device.

    Weights of blocks with `offload` come only while they are used, as by `attach_align_device_hook`. The result of the
    module goes where its first argument was. `tied_params_map` changes nothing.

    Raises: CannotRun that lists names of no block, blocks without an entry in both mappings, and blocks in blocks.
    """
    named = [each for each in (execution_device, offload) if isinstance(each, Mapping)]
    names = list(dict.fromkeys(name for each in named for name in each)) if named else [module_name]
    prefix = f"{module_name}." if module_name else ""
    modules = {prefix + name if name else module_name: block for name, block in module.named_modules()}
    problems = [f"{name!r} is no module" for name in names if name not in modules]
    problems += [f"{name!r} is in one mapping alone" for name in names if any(name not in each for each in named)]
    inside = [(name, outer) for name in names for outer in names if name != outer and _is_in(name, outer)]
    problems += [f"{name!r} is in {outer!r}" for name, outer in inside]
    if problems:
        raise CannotRun("hooks on blocks", problems)
    add_hook_to_module(module, AlignDevicesHook(io_same_device=True, skip_keys=skip_keys), append=True)
    for name in names:
        device = execution_device[name] if isinstance(execution_device, Mapping) else execution_device
        if device is not None:
            bring_arguments(modules[name], device, skip_keys)
        attach_align_device_hook(
            modules[name],
            device,
            offload[name] if isinstance(offload, Mapping) else offload,
            weights_map,
            offload_buffers,
            name,
            skip_keys,
            preload_module_classes,
        )


def _is_in(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")


def bring_arguments(block: nn.Module, device: Place, skip_keys: str | list[str] | None) -> None:
    """Moves what a block is called with to a device: its sums of arguments and results would else be of two devices."""
    if isinstance(block, nn.ModuleList | nn.ModuleDict):  # nobody calls these
        for child in block.children():
            bring_arguments(child, device, skip_keys)
        return
    hook = AlignDevicesHook(skip_keys=skip_keys)
    add_hook_to_module(block, hook, append=True)
    hook.execution_device = real_device(device)  # of the arguments: the tensors of the block are placed by others
