"""Move the arguments of blocks to the devices where the blocks compute."""

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
    """Add hooks that move arguments and weights of blocks to the device of each block.

    The result of the module goes where its first argument was.

    Args:
        module: Module that has the blocks.
        execution_device: Device of all blocks, or a mapping of names of blocks to devices.
        offload: Bring the weights for each forward only: for all blocks, or by the name of a block.
        weights_map: Weights by name. Default: copies on the CPU.
        offload_buffers: Offload buffers too.
        module_name: Name of the module in `weights_map`.
        skip_keys: Keys of mappings whose entries are not moved.
        preload_module_classes: Names of classes whose modules get all of their weights at once.
        tied_params_map: Has no effect, as tied weights stay tied without it.

    Raises:
        CannotRun: A name is no block, or in one mapping alone, or a block is inside another. The error lists all.
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
    """Move what a block is called with to a device, as it would else add tensors of two devices.

    Args:
        block: Module, or a list or dict of modules, each of which gets a hook.
        device: Device of the block.
        skip_keys: Keys of mappings whose entries are not moved.
    """
    if isinstance(block, nn.ModuleList | nn.ModuleDict):  # nobody calls these
        for child in block.children():
            bring_arguments(child, device, skip_keys)
        return
    hook = AlignDevicesHook(skip_keys=skip_keys)
    add_hook_to_module(block, hook, append=True)
    hook.execution_device = real_device(device)  # of the arguments: the tensors of the block are placed by others
