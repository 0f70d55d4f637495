"""Move weights and arguments of a module to the device where it computes, for as long as it does."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from accel_checkpoint.weights.materialise import named_tensors
from accel_ops import send_to_device
from accel_ops.tree import leaves
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from accel_big.hooks.model_hook import ModelHook, add_hook_to_module
from accel_big.look_ahead import LookAhead
from accel_big.maps.check_map import real_device
from accel_big.maps.sizes import is_plain
from accel_big.offload.unit import OffloadedUnit, Slot

M = TypeVar("M", bound=nn.Module)
Place = int | str | torch.device


class AlignDevicesHook(ModelHook):
    """A hook that moves the arguments of a forward, and offloaded weights, to the execution device.

    Offloaded weights have no gradients. Tensors that are not plain, such as quantised tensors of a class of their own,
    stay where they are.

    Args:
        execution_device: Device of the forward. Default: arguments and weights are not moved.
        offload: Bring the weights for the forward only.
        io_same_device: Move the result to the device of the first argument.
        weights_map: Weights by name. Default: a copy of the weights on the CPU.
        offload_buffers: Offload buffers too.
        place_submodules: Handle the tensors of all modules inside as well.
        skip_keys: Keys of mappings whose entries are not moved.
        tied_params_map: Has no effect, as tied weights stay tied without it.
        prefix: What comes before the names of the module's tensors in `weights_map`.
        look_ahead: Reader that is shared with other hooks. Default: a reader of its own.
    """

    def __init__(
        self,
        execution_device: Place | None = None,
        offload: bool = False,
        io_same_device: bool = False,
        weights_map: Mapping[str, torch.Tensor] | None = None,
        offload_buffers: bool = False,
        place_submodules: bool = False,
        skip_keys: str | list[str] | None = None,
        tied_params_map: Mapping[int, Any] | None = None,
        *,
        prefix: str = "",
        look_ahead: LookAhead | None = None,
    ) -> None:
        self.execution_device = None if execution_device is None else real_device(execution_device)
        self.offload, self.io_same_device = offload, io_same_device
        self.weights_map, self.offload_buffers = weights_map, offload_buffers
        self.place_submodules, self.skip_keys = place_submodules, skip_keys
        self._prefix = prefix
        self._look_ahead = look_ahead
        self._unit: OffloadedUnit | None = None
        self._came_from: dict[int, list[torch.device | None]] = {}

    def init_hook(self, module: M) -> M:
        """Move the tensors of a module to the execution device, or drop those that are offloaded."""
        slots = []
        for slot in self._slots(module):
            buffer, tensor = slot.leaf in slot.owner._buffers, slot.tensors[slot.leaf]
            if not is_plain(tensor):
                continue
            known = self.weights_map is None or slot.key in self.weights_map
            if self.offload and known and (self.offload_buffers or not buffer):
                slots.append(slot)
            elif self.execution_device is not None and not tensor.is_meta:
                tensor.data = tensor.data.to(self.execution_device)
        if slots:
            if self.weights_map is None:
                self.weights_map = {slot.key: slot.tensors[slot.leaf].detach().to("cpu") for slot in slots}
            device = self.execution_device or slots[0].tensors[slots[0].leaf].device
            self._unit = OffloadedUnit(
                slots, self.weights_map, torch.device("cpu") if device.type == "meta" else device
            )
            self._look_ahead = self._look_ahead or LookAhead()
            self._look_ahead.add(self._unit)
        return module

    def _slots(self, module: nn.Module) -> Iterable[Slot]:
        owners = dict(module.named_modules()) if self.place_submodules else {"": module}
        owners |= {name: child for name, child in module.named_children() if _has_no_forward(child)}
        for name, owner in owners.items():
            place = f"{self._prefix}{name}." if name else self._prefix
            for leaf in named_tensors(owner, recurse=False):
                yield Slot(owner, leaf, f"{place}{leaf}")

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments on the execution device, after moving the weights there.

        Args:
            module: Module that is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        came_from = None
        if self.io_same_device:
            found = (leaf.device for _, leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
            came_from = next(found, None)
        if self.execution_device is not None:
            args = send_to_device(args, self.execution_device, skip_keys=self.skip_keys)
            kwargs = send_to_device(kwargs, self.execution_device, skip_keys=self.skip_keys)
        if self._unit is not None and self._look_ahead is not None:
            self._look_ahead.enter(self._unit)
        if self.io_same_device:
            self._came_from.setdefault(threading.get_ident(), []).append(came_from)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Return the output, on the device of the arguments if asked, and remove the offloaded weights."""
        device = self._leave()
        return output if device is None else send_to_device(output, device, skip_keys=self.skip_keys)

    def forward_failed(self, module: nn.Module) -> None:
        """Remove the offloaded weights."""
        self._leave()

    def _leave(self) -> torch.device | None:
        if self._unit is not None and self._look_ahead is not None:
            self._look_ahead.leave(self._unit)
        if not self.io_same_device:
            return None
        stack = self._came_from[threading.get_ident()]
        device = stack.pop()
        if not stack:
            del self._came_from[threading.get_ident()]
        return device

    def detach_hook(self, module: M) -> M:
        """Restore the weights of a module, on the device where it computed."""
        if self._unit is not None:
            self._unit.restore()
            self._unit = None
        return module


def _has_no_forward(module: nn.Module) -> bool:
    return isinstance(module, nn.ParameterList | nn.ParameterDict)


def attach_align_device_hook(
    module: nn.Module,
    execution_device: Place | Mapping[str, Place] | None = None,
    offload: bool = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    tied_params_map: Mapping[int, Any] | None = None,
    *,
    look_ahead: LookAhead | None = None,
) -> None:
    """Add an `AlignDevicesHook` to each module that has tensors of its own.

    Attention and parametrized modules of torch get a hook for all that is inside, as they use it without calling it.

    Args:
        module: Module to begin with; the modules inside follow.
        execution_device: Device of the forwards, or a mapping of names of tensors to devices.
        offload: Bring the weights for each forward only.
        weights_map: Weights by name. Default: copies on the CPU.
        offload_buffers: Offload buffers too.
        module_name: Name of the module in `weights_map`.
        skip_keys: Keys of mappings whose entries are not moved.
        preload_module_classes: Names of classes whose modules get all of their weights at once.
        tied_params_map: Has no effect, as tied weights stay tied without it.
        look_ahead: Reader that all hooks share. Default: a reader for each hook.
    """
    whole = type(module).__name__ in (preload_module_classes or ())
    whole = whole or isinstance(module, nn.MultiheadAttention) or is_parametrized(module)
    prefix = f"{module_name}." if module_name else ""
    own = list(named_tensors(module, recurse=whole))
    for name, child in module.named_children() if not whole else ():
        own += [f"{name}.{leaf}" for leaf in named_tensors(child, recurse=False)] if _has_no_forward(child) else []
    if own and not _has_no_forward(module):
        devices = execution_device
        hook = AlignDevicesHook(
            devices.get(prefix + own[0]) if isinstance(devices, Mapping) else devices,
            offload,
            weights_map=weights_map,
            offload_buffers=offload_buffers,
            place_submodules=whole,
            skip_keys=skip_keys,
            prefix=prefix,
            look_ahead=look_ahead,
        )
        add_hook_to_module(module, hook, append=True)
    for name, child in () if whole else module.named_children():
        attach_align_device_hook(
            child,
            execution_device,
            offload,
            weights_map,
            offload_buffers,
            prefix + name,
            skip_keys,
            preload_module_classes,
            look_ahead=look_ahead,
        )


def attach_execution_device_hook(
    module: nn.Module,
    execution_device: Place,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    tied_params_map: Mapping[int, Any] | None = None,
) -> None:
    """Move a module and its arguments to a device, also if modules inside are called by themselves.

    Args:
        module: Module to move.
        execution_device: Device of the forwards.
        skip_keys: Keys of mappings whose entries are not moved.
        preload_module_classes: Names of classes whose modules have a hook for all that is inside.
        tied_params_map: Has no effect, as tied weights stay tied without it.
    """
    attach_align_device_hook(
        module, execution_device, skip_keys=skip_keys, preload_module_classes=preload_module_classes
    )
