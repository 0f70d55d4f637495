"""The text that `accel estimate-memory` prints: a table, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from accel_state.errors import CannotRun

from accel_big.estimate_map import MapEstimate, joined, map_estimate, memory_of
from accel_big.estimate_options import DTYPES, SHORT, STATES
from accel_big.estimate_picture import draw
from accel_big.estimate_text import columns, human, printable
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
ROOM_KEPT = (
    "The first accelerator and cpu keep room for the largest layer that is still to come, which may be brought there."
)


def report(
    model: str | None,
    *,
    dtypes: Sequence[str],
    optimizer: str,
    max_memory: Sequence[str] = (),
    plot: str | None = None,
    form: Literal["table", "json"],
    problems: Sequence[str],
) -> str:
    """The text that `accel estimate-memory` prints. With `plot` it also writes the picture of the device maps.

    Raises: CannotRun with `problems` and all others.
    """
    full = [SHORT.get(dtype, dtype) for dtype in dtypes]
    memory, unclear = memory_of(max_memory)
    wrong = [*problems, *unclear, *(_unknown("dtype", dtype, DTYPES) for dtype in full if dtype not in DTYPES)]
    if plot is not None and (not max_memory or not plot.endswith(".svg")):
        wrong.append(f"--plot {plot}: expected a file of type .svg, and --max_memory with the devices of the map")
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
    maps: list[MapEstimate] = []
    if isinstance(loaded, LoadedModel):
        size, how = measure_model(*loaded), LARGEST
        maps = [map_estimate(loaded.model, memory, dtype) for dtype in dict.fromkeys(full)] if memory else []
    elif memory:
        raise CannotRun(COMMAND, ["--max_memory needs a model: weights do not say which modules they are of"])
    else:
        size, how = measure_weights(loaded.path, loaded.notes), LARGEST_BY_NAME
    rows = [estimate(size, dtype, optimizer) for dtype in dict.fromkeys(full)]
    if plot is not None:
        draw(size.made_by, maps, Path(plot))
    return _json(size, rows, optimizer, maps) if form == "json" else _table(size, rows, optimizer, how, maps)


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"there is no {what} {name!r}{meant} (known: {', '.join(known)})"


def _json(model: ModelSize, rows: Sequence[Estimate], optimizer: str, maps: Sequence[MapEstimate]) -> str:
    return json.dumps(
        {
            **({"device_maps": [asdict(found) for found in maps]} if maps else {}),
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


def _table(model: ModelSize, rows: Sequence[Estimate], optimizer: str, how: str, maps: Sequence[MapEstimate]) -> str:
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
    lines += ["", *columns(cells)]
    dtypes_of: dict[str, list[str]] = {}
    for row in rows:
        dtypes_of.setdefault(row.largest_layer, []).append(row.dtype)
    several = len(dtypes_of) > 1
    largest = [f"{layer} in {', '.join(dtypes)}" if several else layer for layer, dtypes in dtypes_of.items()]
    lines.append("")
    for text in (f"Largest layer: {'; '.join(largest)}.", how, NOT_COUNTED):
        lines += textwrap.wrap(text, WIDTH)
    for found in maps:
        lines += ["", *_map_lines(found)]
    lines += ["", *textwrap.wrap(ROOM_KEPT, WIDTH)] if maps else []
    return "\n".join(map(printable, lines))


def _map_lines(found: MapEstimate) -> list[str]:
    if found.refusal:
        return textwrap.wrap(f"{found.dtype} does not fit: {found.refusal}", WIDTH)
    cells = [[found.dtype, "allowed", "taken", "left"]]
    for share in found.shares:
        limits = ["-", human(share.taken), "-"]
        if share.allowed is not None:
            limits = [human(share.allowed), human(share.taken), human(share.allowed - share.taken)]
        cells.append([share.device, *limits])
    first, *rest = columns(cells)
    lines = [f"{first}  parts"]
    for line, share in zip(rest, found.shares, strict=True):
        parts = ", ".join(name for name, _ in joined(share.parts)) or "nothing"
        lines += textwrap.wrap(f"{line}  {parts}", WIDTH, subsequent_indent=" " * (len(first) + 2))
    return lines
