"""How much memory a model takes, to load and to train: `accel estimate-memory`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
from accel_checkpoint import CheckpointError, weight_files
from accel_state.errors import CannotRun
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel.model_by_name import WHAT, Found, build, locate
from accel.safetensors_header import stored_tensors

#: bits of a number
DTYPES = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}
SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
USUAL = ("float32", "bfloat16", "int8", "int4")
WIDTH = 100
#: parameters are not trained in less
TRAINED_BITS = 16
#: tensors of the size and dtype of a parameter that torch.optim keeps for each
STATES = {
    **{"sgd": 0, "sgd_momentum": 1, "rmsprop": 1, "adagrad": 1},
    **{"adam": 2, "adamw": 2, "adamax": 2, "nadam": 2, "radam": 2, "adadelta": 2},
}
LARGEST = (
    "The largest layer is the module that holds the most: parameters and buffers of its own, and of all inside where"
    " they are used together: blocks that the model says not to split, attention, parametrized modules."
)
LARGEST_BY_NAME = (
    "The largest layer is the most that names with one stem, such as encoder.query.weight and .bias, hold."
)
NOT_COUNTED = (
    "Activations, which grow with the batch, are not counted. With --mixed_precision parameters, gradients and state"
    " stay in float32: that row is the one of training."
)


@dataclass(frozen=True, slots=True)
class Held:
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
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's tensors, each once, and its layers, which may share some."""

    made_by: str
    parameters: tuple[Held, ...]
    buffers: tuple[Held, ...]
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


def report(
    model: str | None, *, dtypes: Sequence[str], optimizer: str, form: Literal["table", "json"], problems: Sequence[str]
) -> str:
    """The text that `accel estimate-memory` prints.

    Raises: CannotRun with `problems` and all others.
    """
    full = [SHORT.get(one, one) for one in dtypes]
    found = [*problems, *(_unknown("dtype", one, DTYPES) for one in full if one not in DTYPES)]
    found += [] if optimizer in STATES else [_unknown("optimizer", optimizer, STATES)]
    place = None
    if model is not None:
        try:
            place = locate(model)
        except CannotRun as error:
            found += error.reasons
    if found or place is None:
        raise CannotRun(WHAT, found)
    built = build(place)
    if isinstance(built, Found):
        measured, how = measured_model(*built), LARGEST
    else:
        measured, how = measured_weights(built.path, built.notes), LARGEST_BY_NAME
    rows = [estimate(measured, one, optimizer) for one in dict.fromkeys(full)]
    return _json(measured, rows, optimizer) if form == "json" else _table(measured, rows, optimizer, how)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no {what} {name!r}{meant} (known: {', '.join(known)})"


def estimate(measured: Measured, dtype: str, optimizer: str) -> Estimate:
    """What the model takes in `dtype`: gradients and state are of that dtype, for parameters that are trained."""
    bits = DTYPES[dtype]
    sizes = [(sum(one.bytes_in(bits) for one in layer.held), layer) for layer in measured.layers]
    largest, layer = max(sizes, key=lambda pair: pair[0], default=(0, None))
    total = sum(one.bytes_in(bits) for one in (*measured.parameters, *measured.buffers))
    gradients = state = training = None
    if bits >= TRAINED_BITS:
        gradients = sum(one.bytes_in(bits) for one in measured.parameters if one.trained)
        state = STATES[optimizer] * gradients
        training = total + gradients + state
    name = "none" if layer is None else f"{layer.name} ({layer.kind})" if layer.kind else layer.name
    return Estimate(dtype, largest, name, total, gradients, state, training)


def measured_model(model: nn.Module, made_by: str, notes: tuple[str, ...] = ()) -> Measured:
    """A model as what counts for memory; tied weights count once.

    Raises: CannotRun for parameters without a shape.
    """
    lazy = [name for name, one in (*model.named_parameters(), *model.named_buffers()) if is_lazy(one)]
    if lazy:
        raise CannotRun(
            WHAT,
            [f"{made_by}: {', '.join(lazy)} have no shape before the first batch; give the lazy modules their sizes"],
        )
    parameters = {_key(one): _held(one, trained=one.requires_grad) for one in model.parameters()}
    buffers = {_key(one): _held(one, trained=False) for one in model.buffers()}
    alone = tuple(one for key, one in buffers.items() if key not in parameters)
    whole = {str(name) for one in model.modules() for name in getattr(one, "_no_split_modules", None) or ()}
    layers = tuple(_layers("", model, whole, set()))
    return Measured(made_by, tuple(parameters.values()), alone, layers, notes)


def _layers(name: str, module: nn.Module, whole: set[str], seen: set[int]) -> Iterator[Layer]:
    if id(module) in seen:
        return
    seen.add(id(module))
    kind = type(module).__name__
    together = kind in whole or isinstance(module, nn.MultiheadAttention) or is_parametrized(module)
    parts = list(module.modules() if together else _own_parts(module))
    tensors = [one for part in parts for one in (*part.parameters(recurse=False), *part.buffers(recurse=False))]
    if tensors:
        once = {_key(one): _held(one, trained=False) for one in tensors}
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


def _held(tensor: torch.Tensor, *, trained: bool) -> Held:
    return Held(tensor.numel(), tensor.numel() * tensor.element_size(), tensor.is_floating_point(), trained)


def _key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory; on the meta device too, where all addresses are 0."""
    if tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor):
        return (id(tensor),)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype)


def measured_weights(path: Path, notes: tuple[str, ...] = ()) -> Measured:
    """Weights in safetensors files as what counts for memory, from their headers alone.

    Raises: CannotRun for what is missing, damaged or of a format that can run code.
    """
    try:
        files = weight_files(path)
        other = [str(one) for one in files if one.suffix != ".safetensors"]
        if other:
            raise CannotRun(
                WHAT,
                [
                    f"{', '.join(other)}: only .safetensors files are looked at; others may be pickles, which can run"
                    " code and are not opened here; save the model as safetensors"
                ],
            )
        stored = {name: one for file in files for name, one in stored_tensors(file).items()}
    except CheckpointError as error:
        raise CannotRun(WHAT, [str(error)]) from None
    tensors = {name: Held(one.count, one.size, one.floating, one.floating) for name, one in stored.items()}
    stems: dict[str, list[Held]] = {}
    for name, one in tensors.items():
        stems.setdefault(name.rpartition(".")[0] or name, []).append(one)
    layers = tuple(Layer(stem, "", tuple(held)) for stem, held in stems.items())
    made_by = f"{path}, {'1 file' if len(files) == 1 else f'{len(files)} files'} of weights"
    return Measured(made_by, tuple(tensors.values()), (), layers, notes)


def _json(measured: Measured, rows: Sequence[Estimate], optimizer: str) -> str:
    return json.dumps(
        {
            "model": measured.made_by,
            "parameters": sum(one.count for one in measured.parameters),
            "trained_parameters": sum(one.count for one in measured.parameters if one.trained),
            "buffers": sum(one.count for one in measured.buffers),
            "as_built_bytes": sum(one.size for one in (*measured.parameters, *measured.buffers)),
            "optimizer": optimizer,
            "notes": list(measured.notes),
            "dtypes": [_json_row(row) for row in rows],
        },
        indent=2,
    )


def _json_row(row: Estimate) -> dict[str, Any]:
    return {
        "dtype": row.dtype,
        "largest_layer": row.largest_layer_name,
        "largest_layer_bytes": row.largest_layer,
        "total_bytes": row.total,
        "gradients_bytes": row.gradients,
        "optimizer_state_bytes": row.optimizer_state,
        "training_bytes": row.training,
    }


def _table(measured: Measured, rows: Sequence[Estimate], optimizer: str, how: str) -> str:
    count = sum(one.count for one in measured.parameters)
    trained = sum(one.count for one in measured.parameters if one.trained)
    built = sum(one.size for one in (*measured.parameters, *measured.buffers))
    all_of_them = "" if trained == count else f", {trained:,} of them trained"
    lines = [f"{measured.made_by}: {count:,} parameters{all_of_them}, {human(built)} as built"]
    lines += [f"note: {one}" for one in measured.notes]
    cells = [["dtype", "largest layer", "total", "gradients", f"state of {optimizer}", "training"]]
    for row in rows:
        sizes = (row.largest_layer, row.total, row.gradients, row.optimizer_state, row.training)
        cells.append([row.dtype, *("-" if one is None else human(one) for one in sizes)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines.append("")
    for first, *rest in cells:
        padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *padded]))
    by_layer: dict[str, list[str]] = {}
    for row in rows:
        by_layer.setdefault(row.largest_layer_name, []).append(row.dtype)
    told = [f"{name} in {', '.join(of)}" for name, of in by_layer.items()] if len(by_layer) > 1 else list(by_layer)
    lines.append("")
    for text in (f"Largest layer: {'; '.join(told)}.", how, NOT_COUNTED):
        lines += textwrap.wrap(text, WIDTH)
    # names may come out of a file of somebody else's, which is not to steer the terminal
    return "\n".join("".join(one if one.isprintable() else "?" for one in line) for line in lines)


def human(size: int) -> str:
    """A size in the largest unit of which there is one at least.

    Units: bytes, with KiB of 1024.
    """
    if size < 1024:
        return f"{size} B"
    number, units = float(size), iter(("KiB", "MiB", "GiB", "TiB"))
    unit = ""
    while number >= 1024 and unit != "TiB":
        number, unit = number / 1024, next(units)
    return f"{number:.2f} {unit}"
