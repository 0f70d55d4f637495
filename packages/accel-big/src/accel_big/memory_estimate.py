"""Compute how much memory a model takes, to load and to train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from accel_checkpoint import CheckpointError, weight_files
from accel_checkpoint.safetensors_header import read_header
from accel_checkpoint.weights.materialise import named_tensors
from accel_state.errors import CannotRun
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from accel_big.estimate_options import COMMAND, DTYPES, STATES
from accel_big.maps.sizes import memory_key, no_split_classes

#: the fewest bits of parameters that are trained
TRAINED_BITS = 16


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The size of a tensor of a model.

    Args:
        count: Number of its values.
        size: Its size as built.
        converts: True if a change of dtype changes it.
        parameter: False for a buffer.
        trained: True if it has a gradient.

    Units:
        Bytes.
    """

    count: int
    size: int
    converts: bool
    parameter: bool = True
    trained: bool = False

    def bytes_in(self, bits: int) -> int:
        """Return the size in a dtype with this number of bits."""
        return -(-self.count * bits // 8) if self.converts else self.size


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of a model.

    Args:
        made_by: Where the model is from, in words.
        tensors: Its tensors, once each.
        layers: The tensors that have to be in memory at the same time, by the name of their layer.
        notes: What a user has to know of how the model was built.
        model: The model, on the meta device if its constructor allows that; None for weights.
    """

    made_by: str
    tensors: tuple[TensorSize, ...]
    layers: Mapping[str, Iterable[TensorSize]]
    notes: tuple[str, ...] = ()
    model: nn.Module | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of a model in one dtype.

    Args:
        dtype: Name of the dtype.
        largest_layer: Name of the largest layer.
        largest_layer_bytes: Its size.
        total_bytes: Size of the model.
        gradients_bytes: Size of the gradients; None if nothing is trained in the dtype. The same holds for the rest.
        optimizer_state_bytes: Size of the state of the optimizer.
        training_bytes: Size of the model, the gradients and the state.

    Units:
        Bytes.
    """

    dtype: str
    largest_layer: str
    largest_layer_bytes: int
    total_bytes: int
    gradients_bytes: int | None
    optimizer_state_bytes: int | None
    training_bytes: int | None


def estimate(size: ModelSize, dtype: str, optimizer: str) -> Estimate:
    """Return the memory of a model in a dtype, in which also its gradients and its optimizer state are.

    Args:
        size: Sizes of the model.
        dtype: Name of a dtype in `DTYPES`.
        optimizer: Name of an optimizer in `STATES`.
    """
    bits = DTYPES[dtype]
    layers = {name: _sum(tensors, bits) for name, tensors in size.layers.items()}
    layer, largest = max(layers.items(), key=itemgetter(1), default=("none", 0))
    total = _sum(size.tensors, bits)
    gradients = _sum((tensor for tensor in size.tensors if tensor.trained), bits)
    state = STATES[optimizer] * gradients
    training = (None,) * 3 if bits < TRAINED_BITS else (gradients, state, total + gradients + state)
    return Estimate(dtype, layer, largest, total, *training)


def _sum(tensors: Iterable[TensorSize], bits: int) -> int:
    return sum(tensor.bytes_in(bits) for tensor in tensors)


def measure_model(model: nn.Module, made_by: str, notes: tuple[str, ...] = ()) -> ModelSize:
    """Return the sizes of a model. Tied weights count once.

    Args:
        model: Model to measure; it may be on the meta device.
        made_by: Where the model is from, in words.
        notes: What a user has to know of how the model was built.

    Raises:
        CannotRun: A parameter has no shape yet.
    """
    lazy = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if lazy:
        words = "have no shape before the first batch; give the lazy modules their sizes"
        raise CannotRun(COMMAND, [f"{made_by}: {', '.join(lazy)} {words}"])
    return ModelSize(made_by, tuple(_sizes(model.modules()).values()), _layers(model), notes, model)


def _layers(model: nn.Module) -> dict[str, Iterable[TensorSize]]:
    layers: dict[str, Iterable[TensorSize]] = {}
    counted: set[nn.Module] = set()
    whole = no_split_classes(model, None)
    for name, module in model.named_modules():
        if module in counted:
            continue
        kind = type(module).__name__
        if kind in whole or isinstance(module, nn.MultiheadAttention) or is_parametrized(module):
            parts = [*module.modules()]
        else:  # lists of parameters have no forward of their own
            lists = (child for child in module.children() if isinstance(child, nn.ParameterList | nn.ParameterDict))
            parts = [module, *lists]
        counted.update(parts)
        if sizes := _sizes(parts):
            layers[f"{name or 'the model itself'} ({kind})"] = sizes.values()
    return layers


def _sizes(modules: Iterable[nn.Module]) -> dict[tuple[object, ...], TensorSize]:
    """Return the sizes of the tensors that modules hold themselves, by memory. What is a parameter too is no buffer."""
    found: dict[tuple[object, ...], TensorSize] = {}
    for module in modules:
        for tensor in named_tensors(module, recurse=False).values():
            key, parameter, count = memory_key(tensor), isinstance(tensor, nn.Parameter), tensor.numel()
            if parameter or key not in found:
                trained, size = parameter and tensor.requires_grad, count * tensor.element_size()
                found[key] = TensorSize(count, size, tensor.is_floating_point(), parameter, trained)
    return found


def measure_weights(path: Path, notes: tuple[str, ...] = ()) -> ModelSize:
    """Return the sizes of weights in safetensors files. Only headers are read.

    Args:
        path: Folder, file or index of weights.
        notes: What a user has to know of why the weights are measured.

    Raises:
        CannotRun: Files are missing, damaged, or of a format that can run code.
    """
    try:
        files = weight_files(path)
        if any(file.suffix != ".safetensors" for file in files):
            reason = "only .safetensors files are looked at; others may be pickles, which can run code: save it as one"
            raise CannotRun(COMMAND, [f"{path}: {reason}"])
        stored = {name: tensor for file in files for name, tensor in read_header(file).tensors.items()}
    except CheckpointError as error:
        raise CannotRun(COMMAND, [str(error)]) from None
    sizes = []
    stems: dict[str, list[TensorSize]] = {}
    for name, tensor in stored.items():
        floating = tensor.dtype.startswith(("F", "BF"))
        sizes.append(TensorSize(math.prod(tensor.shape), tensor.size, floating, trained=floating))
        stems.setdefault(name.rpartition(".")[0] or name, []).append(sizes[-1])
    return ModelSize(f"weights in {path}", tuple(sizes), stems, notes)
