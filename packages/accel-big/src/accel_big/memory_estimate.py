"""How much memory a model takes, to load and to train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_checkpoint.safetensors_header import read_header
from accel_state.errors import CannotRun
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from accel_big.estimate_options import DTYPES, STATES
from accel_big.maps.sizes import memory_key
from accel_big.model_source import COMMAND

#: the fewest bits of parameters that are trained
TRAINED_BITS = 16


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The size of a tensor of a model; `converts` if it follows a change of dtype. Units: bytes."""

    count: int
    size: int
    converts: bool
    trained: bool

    def bytes_in(self, bits: int) -> int:
        """The size in a dtype with this number of bits."""
        return -(-self.count * bits // 8) if self.converts else self.size


@dataclass(frozen=True, slots=True)
class Layer:
    """Tensors that have to be in memory at the same time."""

    name: str
    kind: str
    tensors: tuple[TensorSize, ...]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The tensors of a model, once each, and its layers, which may share tensors."""

    made_by: str
    parameters: tuple[TensorSize, ...]
    buffers: tuple[TensorSize, ...]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of a model in one dtype; None for training in a dtype in which it is not trained. Units: bytes."""

    dtype: str
    largest_layer: str
    largest_layer_bytes: int
    total_bytes: int
    gradients_bytes: int | None
    optimizer_state_bytes: int | None
    training_bytes: int | None


def estimate(model: ModelSize, dtype: str, optimizer: str) -> Estimate:
    """The memory of the model in `dtype`, in which also the gradients and the optimizer state are."""
    bits = DTYPES[dtype]
    sizes = [(_sum(layer.tensors, bits), layer) for layer in model.layers]
    largest, layer = max(sizes, key=lambda pair: pair[0], default=(0, None))
    total = _sum((*model.parameters, *model.buffers), bits)
    gradients = state = training = None
    if bits >= TRAINED_BITS:
        gradients = _sum((tensor for tensor in model.parameters if tensor.trained), bits)
        state = STATES[optimizer] * gradients
        training = total + gradients + state
    name = "none" if layer is None else f"{layer.name} ({layer.kind})" if layer.kind else layer.name
    return Estimate(dtype, name, largest, total, gradients, state, training)


def _sum(tensors: Iterable[TensorSize], bits: int) -> int:
    return sum(tensor.bytes_in(bits) for tensor in tensors)


def measure_model(model: nn.Module, made_by: str, notes: tuple[str, ...] = ()) -> ModelSize:
    """The sizes of a model; tied weights count once.

    Raises: CannotRun for parameters without a shape.
    """
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        reason = f"{', '.join(lazy)} have no shape before the first batch; give the lazy modules their sizes"
        raise CannotRun(COMMAND, [f"{made_by}: {reason}"])
    parameters = {memory_key(tensor): _size(tensor, trained=tensor.requires_grad) for tensor in model.parameters()}
    buffers = {memory_key(tensor): _size(tensor) for tensor in model.buffers()}
    alone = tuple(size for key, size in buffers.items() if key not in parameters)
    whole = {str(name) for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    layers = tuple(_layers("", model, whole, set()))
    return ModelSize(made_by, tuple(parameters.values()), alone, layers, notes)


def _layers(name: str, module: nn.Module, whole: set[str], seen: set[int]) -> Iterator[Layer]:
    if id(module) in seen:
        return
    seen.add(id(module))
    kind = type(module).__name__
    together = kind in whole or isinstance(module, nn.MultiheadAttention) or is_parametrized(module)
    parts = list(module.modules() if together else _own_parts(module))
    sizes = {
        memory_key(tensor): _size(tensor)
        for part in parts
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
    }
    if sizes:
        yield Layer(name or "the model itself", kind, tuple(sizes.values()))
    if not together:
        for child_name, child in module.named_children():
            if child not in parts:
                yield from _layers(f"{name}.{child_name}" if name else child_name, child, whole, seen)


def _own_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its lists of parameters, which have no forward of their own."""
    yield module
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield child


def _size(tensor: torch.Tensor, *, trained: bool = False) -> TensorSize:
    return TensorSize(tensor.numel(), tensor.numel() * tensor.element_size(), tensor.is_floating_point(), trained)


def measure_weights(path: Path, notes: tuple[str, ...] = ()) -> ModelSize:
    """The sizes of weights in safetensors files, of which only the headers are read.

    Raises: CannotRun if files are missing, damaged, or of a format that can run code.
    """
    try:
        files = weight_files(path)
        pickles = [str(file) for file in files if file.suffix != ".safetensors"]
        if pickles:
            reason = "only .safetensors files are looked at; others may be pickles, which can run code and are not"
            raise CannotRun(COMMAND, [f"{', '.join(pickles)}: {reason} opened here; save the model as safetensors"])
        stored = {name: tensor for file in files for name, tensor in read_header(file).tensors.items()}
    except CheckpointError as error:
        raise CannotRun(COMMAND, [str(error)]) from None
    stems: dict[str, list[TensorSize]] = {}
    for name, tensor in stored.items():
        floating = tensor.dtype.startswith(("F", "BF"))
        size = TensorSize(math.prod(tensor.shape), tensor.size, floating, floating)
        stems.setdefault(name.rpartition(".")[0] or name, []).append(size)
    layers = tuple(Layer(stem, "", tuple(sizes)) for stem, sizes in stems.items())
    made_by = f"{path}, {'1 file' if len(files) == 1 else f'{len(files)} files'} of weights"
    return ModelSize(made_by, tuple(size for sizes in stems.values() for size in sizes), (), layers, notes)
