"""The text that `accel estimate-memory` prints: a table, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

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
            "parameters": sum(one.count for one in model.parameters),
            "trained_parameters": sum(one.count for one in model.parameters if one.trained),
            "buffers": sum(one.count for one in model.buffers),
            "as_built_bytes": sum(one.size for one in (*model.parameters, *model.buffers)),
            "optimizer": optimizer,
            "notes": list(model.notes),
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


def _table(model: ModelSize, rows: Sequence[Estimate], optimizer: str, how: str) -> str:
    count = sum(one.count for one in model.parameters)
    trained = sum(one.count for one in model.parameters if one.trained)
    built = sum(one.size for one in (*model.parameters, *model.buffers))
    all_of_them = "" if trained == count else f", {trained:,} of them trained"
    lines = [f"{model.made_by}: {count:,} parameters{all_of_them}, {human(built)} as built"]
    lines += [f"note: {one}" for one in model.notes]
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
