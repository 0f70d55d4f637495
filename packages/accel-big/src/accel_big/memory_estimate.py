"""How much memory a model takes, to load and to train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_state.errors import CannotRun
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_big.estimate_options import DTYPES, STATES
from accel_big.model_source import COMMAND
from accel_big.safetensors_header import stored_tensors

#: parameters are not trained in less
TRAINED_BITS = 16


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A tensor of a model, as what counts for memory; `converts` if a change of dtype reaches it."""

    count: int
    size: int
    converts: bool
    trained: bool

    def bytes_in(self, bits: int) -> int:
        """Its size in a dtype of so many bits."""
        return -(-self.count * bits // 8) if self.converts else self.size


@dataclass(frozen=True, slots=True)
class Layer:
    """Tensors that have to be there at once."""

    name: str
    kind: str
    tensors: tuple[TensorSize, ...]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model's tensors, each once, and its layers, which may share some."""

    made_by: str
    parameters: tuple[TensorSize, ...]
    buffers: tuple[TensorSize, ...]
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model takes in one dtype; None where it is not trained in that.

    Units: bytes.
    """

    dtype: str
    largest_layer: int
    largest_layer_name: str
    total: int
    gradients: int | None
    optimizer_state: int | None
    training: int | None


def estimate(model: ModelSize, dtype: str, optimizer: str) -> Estimate:
    """What the model takes in `dtype`: gradients and state are of that dtype, for parameters that are trained."""
    bits = DTYPES[dtype]
    sizes = [(sum(one.bytes_in(bits) for one in layer.tensors), layer) for layer in model.layers]
    largest, layer = max(sizes, key=lambda pair: pair[0], default=(0, None))
    total = sum(one.bytes_in(bits) for one in (*model.parameters, *model.buffers))
    gradients = state = training = None
    if bits >= TRAINED_BITS:
        gradients = sum(one.bytes_in(bits) for one in model.parameters if one.trained)
        state = STATES[optimizer] * gradients
        training = total + gradients + state
    name = "none" if layer is None else f"{layer.name} ({layer.kind})" if layer.kind else layer.name
    return Estimate(dtype, largest, name, total, gradients, state, training)


def measure_model(model: nn.Module, made_by: str, notes: tuple[str, ...] = ()) -> ModelSize:
    """A model as what counts for memory; tied weights count once.

    Raises: CannotRun for parameters without a shape.
    """
    lazy = [name for name, one in (*model.named_parameters(), *model.named_buffers()) if is_lazy(one)]
    if lazy:
        raise CannotRun(
            COMMAND,
            [f"{made_by}: {', '.join(lazy)} have no shape before the first batch; give the lazy modules their sizes"],
        )
    parameters = {_key(one): _size(one, trained=one.requires_grad) for one in model.parameters()}
    buffers = {_key(one): _size(one, trained=False) for one in model.buffers()}
    alone = tuple(one for key, one in buffers.items() if key not in parameters)
    whole = {str(name) for one in model.modules() for name in getattr(one, "_no_split_modules", None) or ()}
    layers = tuple(_layers("", model, whole, set()))
    return ModelSize(made_by, tuple(parameters.values()), alone, layers, notes)


def _layers(name: str, module: nn.Module, whole: set[str], seen: set[int]) -> Iterator[Layer]:
    if id(module) in seen:
        return
    seen.add(id(module))
    kind = type(module).__name__
    together = kind in whole or isinstance(module, nn.MultiheadAttention) or is_parametrized(module)
    parts = list(module.modules() if together else _own_parts(module))
    tensors = [one for part in parts for one in (*part.parameters(recurse=False), *part.buffers(recurse=False))]
    if tensors:
        once = {_key(one): _size(one, trained=False) for one in tensors}
        yield Layer(name or "the model itself", kind, tuple(once.values()))
    if not together:
        for child_name, child in module.named_children():
            if child not in parts:
                yield from _layers(f"{name}.{child_name}" if name else child_name, child, whole, seen)


def _own_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its lists of parameters, which it uses itself: they have no forward."""
    yield module
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield child


def _size(tensor: torch.Tensor, *, trained: bool) -> TensorSize:
    return TensorSize(tensor.numel(), tensor.numel() * tensor.element_size(), tensor.is_floating_point(), trained)


def _key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory; on the meta device too, where all addresses are 0."""
    if tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor):
        return (id(tensor),)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype)


def measure_weights(path: Path, notes: tuple[str, ...] = ()) -> ModelSize:
    """Weights in safetensors files as what counts for memory, from their headers alone.

    Raises: CannotRun for what is missing, damaged or of a format that can run code.
    """
    try:
        files = weight_files(path)
        other = [str(one) for one in files if one.suffix != ".safetensors"]
        if other:
            raise CannotRun(
                COMMAND,
                [
                    f"{', '.join(other)}: only .safetensors files are looked at; others may be pickles, which can run"
                    " code and are not opened here; save the model as safetensors"
                ],
            )
        stored = {name: one for file in files for name, one in stored_tensors(file).items()}
    except CheckpointError as error:
        raise CannotRun(COMMAND, [str(error)]) from None
    tensors = {name: TensorSize(one.count, one.size, one.floating, one.floating) for name, one in stored.items()}
    stems: dict[str, list[TensorSize]] = {}
    for name, one in tensors.items():
        stems.setdefault(name.rpartition(".")[0] or name, []).append(one)
    layers = tuple(Layer(stem, "", tuple(sizes)) for stem, sizes in stems.items())
    made_by = f"{path}, {'1 file' if len(files) == 1 else f'{len(files)} files'} of weights"
    return ModelSize(made_by, tuple(tensors.values()), (), layers, notes)
