"""The text that `accel estimate-memory` prints: a table, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Literal

from accel_state.errors import CannotRun

from accel_big.estimate_options import DTYPES, SHORT, STATES
from accel_big.memory_estimate import Estimate, ModelSize, estimate, measure_model, measure_weights
from accel_big.model_source import COMMAND, LoadedModel, load, locate

WIDTH = 100
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


def report(
    model: str | None, *, dtypes: Sequence[str], optimizer: str, form: Literal["table", "json"], problems: Sequence[str]
) -> str:
    """The text that `accel estimate-memory` prints.

    Raises: CannotRun with `problems` and all others.
    """
    full = [SHORT.get(dtype, dtype) for dtype in dtypes]
    wrong = [*problems, *(_unknown("dtype", dtype, DTYPES) for dtype in full if dtype not in DTYPES)]
    wrong += [] if optimizer in STATES else [_unknown("optimizer", optimizer, STATES)]
    source = None
    if model is not None:
        try:
            source = locate(model)
        except CannotRun as error:
            wrong += error.reasons
    if wrong or source is None:
        raise CannotRun(COMMAND, wrong)
    loaded = load(source)
    if isinstance(loaded, LoadedModel):
        size, how = measure_model(*loaded), LARGEST
    else:
        size, how = measure_weights(loaded.path, loaded.notes), LARGEST_BY_NAME
    rows = [estimate(size, dtype, optimizer) for dtype in dict.fromkeys(full)]
    return _json(size, rows, optimizer) if form == "json" else _table(size, rows, optimizer, how)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no {what} {name!r}{meant} (known: {', '.join(known)})"


def _json(model: ModelSize, rows: Sequence[Estimate], optimizer: str) -> str:
    return json.dumps(
        {
            "model": model.made_by,
            "parameters": sum(tensor.count for tensor in model.parameters),
            "trained_parameters": sum(tensor.count for tensor in model.parameters if tensor.trained),
            "buffers": sum(tensor.count for tensor in model.buffers),
            "as_built_bytes": sum(tensor.size for tensor in (*model.parameters, *model.buffers)),
            "optimizer": optimizer,
            "notes": list(model.notes),
            "dtypes": [asdict(row) for row in rows],
        },
        indent=2,
    )


def _table(model: ModelSize, rows: Sequence[Estimate], optimizer: str, how: str) -> str:
    count = sum(tensor.count for tensor in model.parameters)
    trained = sum(tensor.count for tensor in model.parameters if tensor.trained)
    built = sum(tensor.size for tensor in (*model.parameters, *model.buffers))
    of_them_trained = "" if trained == count else f", {trained:,} of them trained"
    lines = [f"{model.made_by}: {count:,} parameters{of_them_trained}, {human(built)} as built"]
    lines += [f"note: {note}" for note in model.notes]
    cells = [["dtype", "largest layer", "total", "gradients", f"state of {optimizer}", "training"]]
    for row in rows:
        sizes: list[int | None] = [row.largest_layer_bytes, row.total_bytes]
        sizes += [row.gradients_bytes, row.optimizer_state_bytes, row.training_bytes]
        cells.append([row.dtype, *("-" if size is None else human(size) for size in sizes)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines.append("")
    for first, *rest in cells:
        padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *padded]))
    dtypes_of: dict[str, list[str]] = {}
    for row in rows:
        dtypes_of.setdefault(row.largest_layer, []).append(row.dtype)
    several = len(dtypes_of) > 1
    largest = [f"{layer} in {', '.join(dtypes)}" if several else layer for layer, dtypes in dtypes_of.items()]
    lines.append("")
    for text in (f"Largest layer: {'; '.join(largest)}.", how, NOT_COUNTED):
        lines += textwrap.wrap(text, WIDTH)
    # names may come from a foreign file, which must not control the terminal
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)


def human(size: int) -> str:
    """A size in the largest unit in which it is at least 1.

    Units: bytes, with KiB of 1024.
    """
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{size} B" if unit == "B" else f"{number:.2f} {unit}"
