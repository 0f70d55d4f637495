"""Take models apart and compile them, write and read objects, and free memory, as scripts for Accelerate do."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, MutableMapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accel_amp import PRECISIONS, autocast, unwrap_forward
from accel_checkpoint import save_object
from accel_checkpoint.load import read_plain
from accel_ops import send_to_device
from accel_parallel import like_blocks
from accel_parallel.stages.compile import compile_in_place
from accel_parallel.stages.containers import inside, uncompiled
from accel_state import PartialState
from torch import nn
from torch.distributed.tensor import DTensor

from accel_names.tensors import ConvertOutputsToFp32


def extract_model_from_parallel(
    model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True, recursive: bool = False
) -> nn.Module:
    """Return the model in torch's parallel containers.

    Args:
        model: The model, maybe in containers.
        keep_fp32_wrapper: Whether the forward that computes under autocast stays.
        keep_torch_compile: Whether a compiled module stays compiled.
        recursive: Whether containers of its parts go as well.
    """
    inner = inside(model, lambda outer: outer, keep_compile=keep_torch_compile)
    if recursive:
        _replace_parts(inner, keep_torch_compile=keep_torch_compile)
    if not keep_fp32_wrapper and isinstance(converted := vars(inner).get("forward"), ConvertOutputsToFp32):
        inner.forward = converted.model_forward
    return inner if keep_fp32_wrapper else unwrap_forward(inner)


def _replace_parts(model: nn.Module, *, keep_torch_compile: bool) -> None:
    for name, part in model.named_children():
        inner = inside(part, lambda outer: outer, keep_compile=keep_torch_compile)
        if inner is not part:
            setattr(model, name, inner)
        _replace_parts(inner, keep_torch_compile=keep_torch_compile)


def is_compiled_module(module: nn.Module) -> bool:
    """Return whether torch.compile made a module."""
    return uncompiled(module) is not module


def has_compiled_regions(module: nn.Module) -> bool:
    """Return whether a part of a module, but not the module itself, is compiled."""
    parts = [part for part in module.modules() if part is not module]
    return not _compiles(module) and any(map(_compiles, parts))


def _compiles(module: nn.Module) -> bool:
    return is_compiled_module(module) or module._compiled_call_impl is not None


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile each block of a list of like blocks in place, or the whole model if there is no list."""
    blocks = like_blocks(module)
    if not blocks:
        return torch.compile(module, **compile_kwargs)  # type: ignore[return-value] # a module, as it is given one
    compile_in_place(blocks, **compile_kwargs)
    return module


def model_has_dtensor(model: nn.Module) -> bool:
    """Return whether a parameter of a model is divided over processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def get_module_children_bottom_up(model: nn.Module, return_fqns: bool = False) -> list[Any]:
    """Return all modules, each after those inside it and the model last, or pairs of name and module."""
    modules = list(_bottom_up("", model))
    return modules if return_fqns else [module for _, module in modules]


def _bottom_up(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in module.named_children():
        yield from _bottom_up(f"{name}.{child_name}".lstrip("."), child)
    yield name, module


def get_module_class_from_name(module: nn.Module, name: str) -> type[nn.Module] | None:
    """Return the class of this name of a module in a model, or None if no module has such a class."""
    return next((type(part) for part in module.modules() if type(part).__name__ == name), None)


def get_pretty_name(obj: Any) -> str:
    """Return the name of a function or class, or that of the class of an object."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    return str(getattr(named, "__qualname__", None) or named.__name__)


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Return the attribute at a path with dots."""
    return functools.reduce(getattr, attr.split("."), obj)


def merge_dicts(source: MutableMapping[Any, Any], destination: MutableMapping[Any, Any]) -> Any:
    """Put the entries of a mapping into another, merging mappings that are in both, and return the other."""
    for key, value in source.items():
        if isinstance(value, MutableMapping):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def convert_bytes(size: float) -> str:
    """Return a size in words such as 1.5 KB, with steps of 1024 and two decimal places."""
    unit = 0
    units = ("bytes", "KB", "MB", "GB", "TB", "PB")
    while size >= 1024 and unit < len(units) - 1:
        size, unit = size / 1024, unit + 1
    return f"{round(size, 2)} {units[unit]}"


def release_memory(*objects: Any) -> list[None]:
    """Give unused memory of the device back, and return a None for each object, to assign to its name."""
    count = len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * count


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give unused memory of the device back, after a garbage collection if it is asked for."""
    if garbage_collection:
        gc.collect()
    PartialState().run.device.release_memory()


def wait_for_everyone() -> None:
    """Wait until every process has called.

    Collective:
        Every process must call.
    """
    PartialState().wait_for_everyone()


def save(obj: Any, f: str | Path, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Write an object on the main process.

    Args:
        obj: The object.
        f: The path of the file.
        save_on_each_node: Whether one process of each machine writes it.
        safe_serialization: Whether to write safetensors, which takes a mapping of tensors, in place of torch.save.
    """
    state = PartialState()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        save_object(obj, f, safe_serialization=safe_serialization)


def load(f: str | Path, map_location: torch.device | str | None = None, *, weights_only: bool = True) -> Any:
    """Read the tensors, numbers and texts that torch.save wrote, without running code of the file.

    Args:
        f: The path of the file.
        map_location: The device to move tensors to.
        weights_only: True; False is refused.

    Raises:
        ValueError: For `weights_only=False`.
        CheckpointError: For a file that holds anything else.
    """
    if not weights_only:
        raise ValueError("load(weights_only=False) would run code from the file; call torch.load for a file you trust")
    content = read_plain(Path(f))
    return content if map_location is None else send_to_device(content, map_location)


def get_mixed_precision_context_manager(native_amp: bool = False, autocast_kwargs: Any = None) -> Any:
    """Return the context of `torch.autocast` in the precision of the run.

    Args:
        native_amp: Whether there is mixed precision; without it the context does nothing.
        autocast_kwargs: An `AutocastKwargs` that may turn it off.
    """
    if not native_amp:
        return nullcontext()
    run = PartialState().run
    policy = PRECISIONS.load(run.precision or "no")().policy
    enabled = True if autocast_kwargs is None else autocast_kwargs.enabled
    return autocast(policy, run.placed_on.type, enabled=enabled)


def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> torch.amp.GradScaler:
    """Return torch's scaler of losses for the device of the run."""
    return torch.amp.GradScaler(PartialState().device.type, **kwargs)


def _refuse_recurrent_layers_under_sequence_parallelism(model: Any) -> None:
    """Raise ValueError for a model with linear attention, whose state a part of a sequence does not have."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = sorted(kind for kind in set(getattr(text, "layer_types", None) or ()) if "linear_attention" in kind)
    if kinds:
        raise ValueError(
            f"sequences cannot be divided over ranks: layers of {', '.join(kinds)} carry a state along them"
        )
