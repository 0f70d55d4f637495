"""Choose a device for each part of a model. Devices are filled one after the other, in the order of the model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn

from accel_big.maps.memory import get_max_memory
from accel_big.maps.sizes import Dtype, compute_module_sizes, find_tied_parameters, no_split_classes, prefixes

logger = logging.getLogger("accel")

DeviceMap = dict[str, Any]


def infer_auto_device_map(
    model: nn.Module,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: list[str] | None = None,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    verbose: bool = False,
    clean_result: bool = True,
    offload_buffers: bool = False,
    fallback_allocation: bool = False,
) -> DeviceMap:
    """Return a device for each part of a model: the index of an accelerator, "cpu" or "disk".

    The first accelerator and the CPU keep room for the largest layer that is still to come, which may have to be
    brought there. Tied weights stay together. What fits nowhere is on disk, unless `max_memory` limits that.

    Args:
        model: Model to divide; it may be on the meta device.
        max_memory: Limit of each device. Default: the free memory.
        no_split_module_classes: Names of classes whose modules stay on one device. Default: those that the model names.
        dtype: Dtype in which floating-point tensors are counted, if it is smaller than theirs.
        special_dtypes: Dtypes of tensors by name.
        verbose: Log each part with its device.
        clean_result: Give modules on one device a single entry.
        offload_buffers: Offload buffers too; otherwise those of offloaded parts have to fit on the first accelerator.
        fallback_allocation: Give an accelerator that would stay empty the largest later part that it can hold.

    Raises:
        CannotRun: The model does not fit, or `max_memory` is wrong. The error has the sizes.
    """
    no_split = no_split_classes(model, no_split_module_classes)
    memory = get_max_memory(max_memory)
    chosen, sizes = map_within(
        model, memory, no_split, dtype, special_dtypes, offload_buffers=offload_buffers, fallback=fallback_allocation
    )
    accelerators = [device for device in memory if isinstance(device, int)]
    if accelerators and not any(isinstance(device, int) for device in chosen.values()):
        logger.warning(
            "device_map: insufficient memory on %s for any part of the model; fallback_allocation=True looks for a"
            " smaller part",
            accelerators,
        )
    for name, device in chosen.items() if verbose else ():
        logger.info("device_map: %r -> %r (%s bytes)", name, device, f"{sizes[name]:,}")
    return clean_device_map(chosen) if clean_result else chosen


def map_within(
    model: nn.Module,
    memory: Mapping[int | str, int],
    no_split: frozenset[str],
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    *,
    offload_buffers: bool = False,
    fallback: bool = False,
) -> tuple[DeviceMap, dict[str, int]]:
    """Return a device for each part of a model, and the sizes of all modules.

    Args:
        model: Model to divide; it may be on the meta device.
        memory: Limit of each device. This machine need not have them.
        no_split: Names of classes whose modules stay on one device.
        dtype: Dtype in which floating-point tensors are counted, if it is smaller than theirs.
        special_dtypes: Dtypes of tensors by name.
        offload_buffers: Offload buffers too.
        fallback: Give an accelerator that would stay empty the largest later part that it can hold.

    Raises:
        CannotRun: The model does not fit.

    Units:
        Bytes.
    """
    sizes = compute_module_sizes(model, dtype, special_dtypes)
    walk = _Walk(model, sizes, no_split, memory, fallback=fallback)
    walk.place("", model)
    main = next(iter(memory))
    if not offload_buffers and isinstance(main, int):
        buffers = compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)
        brought = sum(buffers.get(name, 0) for name, device in walk.chosen.items() if device in ("cpu", "disk"))
        if walk.used[main] + brought > memory[main]:
            raise CannotRun(
                f"a device map within {dict(memory)}",
                [
                    f"buffers of {brought:,} bytes of offloaded modules do not fit on device {main} beside its"
                    f" {walk.used[main]:,} bytes: give offload_buffers=True, or it more memory"
                ],
            )
    return walk.chosen, sizes


class _Walk:
    """A pass through a model that asks each module once for each device that it does not fit on."""

    def __init__(
        self,
        model: nn.Module,
        sizes: dict[str, int],
        no_split: frozenset[str],
        memory: Mapping[int | str, int],
        *,
        fallback: bool,
    ) -> None:
        self._model, self._fallback = model, fallback
        self.chosen: DeviceMap = {}
        self.used: dict[int | str, int] = dict.fromkeys(memory, 0)
        self._sizes, self._no_split = sizes, no_split
        self._memory: dict[int | str, float] = dict(memory)
        if "disk" not in memory:
            self._memory["disk"] = float("inf")
            self.used["disk"] = 0
        self._devices, self._at = list(self._memory), 0
        accelerators = [device for device in self._devices if isinstance(device, int)]
        self._keeps_room = {*accelerators[:1], "cpu"}
        layers = list(layers_of("", model, no_split))
        #: how many layers come before the end of each module
        self._end: dict[str, int] = {}
        for number, layer in enumerate(layers, start=1):
            self._end |= dict.fromkeys(reversed([*prefixes(layer)]), number)
        self._largest_after = [0]
        for layer in reversed(layers):
            self._largest_after.append(max(sizes[layer], self._largest_after[-1]))
        self._largest_after.reverse()
        self._tied, self._tied_inside = _ties(model, no_split)
        self._brought: set[str] = set()

    def place(self, name: str, module: nn.Module | None) -> None:
        """Choose a device for a module, or for a tensor without a module, and for what is tied to it."""
        if name in self.chosen:
            return
        partners = self._partners(name)
        need = self._need(name, partners)
        parts = list(_parts(name, module, self._no_split))
        while True:
            device = self._devices[self._at]
            room = self._largest_after[self._end[name]] if device in self._keeps_room else 0
            if name not in self._brought and self.used[device] + need + room <= self._memory[device]:
                self._choose(name, partners, device)
                return
            if parts:
                for part, child in parts:
                    self.place(part, child)
                return
            if device == self._devices[-1]:
                self._refuse(name, need)
            if self._fallback and isinstance(device, int) and not self.used[device]:
                self._fill_with_later_part(name, device)
                if name in self.chosen:  # as a partner of that part
                    return
            self._at += 1

    def _need(self, name: str, partners: list[str]) -> int:
        return sum(self._sizes[part] for part in (name, *partners))

    def _choose(self, name: str, partners: list[str], device: int | str) -> None:
        self.used[device] += self._need(name, partners)
        self.chosen |= dict.fromkeys((name, *partners), device)
        self._brought |= {prefix for partner in partners for prefix in prefixes(partner)}

    def _fill_with_later_part(self, large: str, device: int | str) -> None:
        """Choose the largest part that a device can hold. What the part is in will be divided."""
        room = self._memory[device] - (self._largest_after[0] if device in self._keeps_room else 0)
        for name in sorted(self._end, key=self._sizes.__getitem__, reverse=True):
            partners = self._partners(name)
            need = self._need(name, partners)
            divided = any(prefix in self.chosen for prefix in prefixes(name)) or name in self._brought
            if name and not divided and name != large and 0 < need <= room:
                self._choose(name, partners, device)
                self._brought |= set(prefixes(name))
                return

    def _partners(self, name: str) -> list[str]:
        """Return what is tied, also through others, to something in `name`, and is not in `name`."""
        open_ = list(self._tied_inside.get(name, ()))
        found: dict[str, None] = {}
        while open_:
            for partner in self._tied[open_.pop()]:
                inside = not name or partner == name or partner.startswith(f"{name}.")
                if not inside and partner not in found and partner not in self.chosen:
                    found[partner] = None
                    open_.append(partner)
        return list(found)

    def _refuse(self, name: str, need: int) -> None:
        filled = [
            f"{device}: {self.used[device]:,} of {size:,} bytes are taken" for device, size in self._memory.items()
        ]
        reason = f"{name or 'the model'} needs {need:,} bytes more, of {self._sizes['']:,} of the whole model"
        raise CannotRun("a device map", [reason, *filled, "allow more memory, or leave 'disk' out of max_memory"])


def _parts(name: str, module: nn.Module | None, no_split: frozenset[str]) -> Iterator[tuple[str, nn.Module | None]]:
    """Yield the tensors and modules directly in a module, or nothing if it is not divided or has only tensors."""
    if module is None or type(module).__name__ in no_split or all(child is None for child in module._modules.values()):
        return
    prefix = f"{name}." if name else ""
    for tensor in named_tensors(module, recurse=False):
        yield prefix + tensor, None
    yield from ((prefix + child_name, child) for child_name, child in module._modules.items() if child is not None)


def layers_of(name: str, module: nn.Module | None, no_split: frozenset[str]) -> Iterator[str]:
    """Yield the parts of a module that are not divided, in order.

    Args:
        name: Name of the module.
        module: The module, or None for a tensor without one.
        no_split: Names of classes whose modules are not divided.
    """
    parts = list(_parts(name, module, no_split))
    for part, child in parts:
        yield from layers_of(part, child, no_split)
    if not parts:
        yield name


def _ties(model: nn.Module, no_split: frozenset[str]) -> tuple[dict[str, set[str]], dict[str, list[str]]]:
    """Return the parts that share a device with each tied part, and the tied parts inside of each module."""
    tied: dict[str, set[str]] = {}
    for names in find_tied_parameters(model):
        parts = {_undivided(model, name, no_split) for name in names}
        for part in parts if len(parts) > 1 else ():
            tied.setdefault(part, set()).update(parts - {part})
    inside: dict[str, list[str]] = {}
    for part in tied:
        for prefix in prefixes(part):
            inside.setdefault(prefix, []).append(part)
    return tied, inside


def _undivided(model: nn.Module, tensor: str, no_split: frozenset[str]) -> str:
    """Return the largest part with a tensor that is not divided."""
    module = model
    for prefix in prefixes(tensor):
        if prefix == tensor:
            break
        module = model.get_submodule(prefix)
        if type(module).__name__ in no_split:
            return prefix
    return tensor if any(child is not None for child in module._modules.values()) else tensor.rpartition(".")[0]


def clean_device_map(device_map: Mapping[str, Any], module_name: str = "") -> DeviceMap:
    """Merge the entries of modules on one device. With `module_name`, only entries inside that module are merged."""
    devices: dict[str, set[Any]] = {}
    for name, device in device_map.items():
        for prefix in prefixes(name):
            devices.setdefault(prefix, set()).add(device)
    cleaned: DeviceMap = {}
    for name, device in device_map.items():
        within = not module_name or name == module_name or name.startswith(f"{module_name}.")
        above = prefixes(name) if within else iter(())
        reached = (prefix for prefix in above if prefix.startswith(module_name))
        top = next((prefix for prefix in reached if len(devices[prefix]) == 1), name)
        cleaned[top] = device
    return cleaned
