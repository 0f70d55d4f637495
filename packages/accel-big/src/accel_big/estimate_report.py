"""Write the text that `accel estimate-memory` prints: a table, or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal

from accel_state.errors import CannotRun
from accel_state.failure_file import printable

from accel_big.estimate_map import MapEstimate, join_neighbours, map_estimate, memory_of
from accel_big.estimate_options import COMMAND, DTYPES, SHORT, STATES
from accel_big.estimate_text import columns, human
from accel_big.memory_estimate import estimate
from accel_big.model_source import load, locate

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
    model: str,
    *,
    dtypes: Sequence[str],
    optimizer: str,
    max_memory: Sequence[str] = (),
    form: Literal["table", "json"] = "table",
) -> str:
    """Return the text that `accel estimate-memory` prints.

    Args:
        model: The model as the command line names it.
        dtypes: Names of the dtypes.
        optimizer: Name of the optimizer.
        max_memory: Memory of the devices of a map, such as "0=24GB".
        form: Form of the text.

    Raises:
        CannotRun: There is no estimate. The error has all that is wrong.
    """
    full = list(dict.fromkeys(SHORT.get(dtype, dtype) for dtype in dtypes))
    memory, problems = memory_of(max_memory)
    for what, names, known in (("dtype", full, DTYPES), ("optimizer", [optimizer], STATES)):
        problems += [f"there is no {what} {name!r} (known: {', '.join(known)})" for name in names if name not in known]
    try:
        build = locate(model)
    except CannotRun as error:
        problems += error.reasons
    if problems:
        raise CannotRun(COMMAND, problems)
    size = load(build)
    maps = []
    if memory:
        if size.model is None:
            raise CannotRun(COMMAND, ["--max_memory needs a model: weights do not say which modules they are of"])
        maps = [map_estimate(size.model, memory, dtype) for dtype in full]
    facts = {
        "device_maps": [asdict(found) for found in maps],
        "model": size.made_by,
        "parameters": sum(tensor.count for tensor in size.tensors if tensor.parameter),
        "trained_parameters": sum(tensor.count for tensor in size.tensors if tensor.trained),
        "buffers": sum(tensor.count for tensor in size.tensors if not tensor.parameter),
        "as_built_bytes": sum(tensor.size for tensor in size.tensors),
        "optimizer": optimizer,
        "notes": size.notes,
        "dtypes": [asdict(estimate(size, dtype, optimizer)) for dtype in full],
    }
    if form == "json":
        return json.dumps(facts, indent=2)
    largest = LARGEST_BY_NAME if size.model is None else LARGEST
    # names may come from a foreign file
    return "\n".join(map(printable, [*_table(facts, largest), *_maps(maps)]))


def _table(facts: dict[str, Any], how: str) -> Iterator[str]:
    count, trained = facts["parameters"], facts["trained_parameters"]
    of_them_trained = "" if trained == count else f", {trained:,} of them trained"
    yield f"{facts['model']}: {count:,} parameters{of_them_trained}, {human(facts['as_built_bytes'])} as built"
    yield from (f"note: {note}" for note in facts["notes"])
    yield ""
    cells = [["dtype", "largest layer", "total", "gradients", f"state of {facts['optimizer']}", "training"]]
    for row in facts["dtypes"]:
        dtype, _, *sizes = row.values()
        cells.append([dtype, *map(human, sizes)])
    yield from columns(cells)
    yield ""
    layers = dict.fromkeys(row["largest_layer"] for row in facts["dtypes"])
    for text in (f"Largest layer: {', or '.join(layers)}.", how, NOT_COUNTED):
        yield from textwrap.wrap(text, WIDTH)


def _maps(maps: Sequence[MapEstimate]) -> Iterator[str]:
    for found in maps:
        yield ""
        if found.refusal:
            yield from textwrap.wrap(f"{found.dtype} does not fit: {found.refusal}", WIDTH)
            continue
        cells = [[share.device, *map(human, (share.allowed, share.taken, share.left))] for share in found.shares]
        first, *rest = columns([[found.dtype, "allowed", "taken", "left"], *cells])
        yield f"{first}  parts"
        for line, share in zip(rest, found.shares, strict=True):
            parts = ", ".join(name for name, _ in join_neighbours(share.parts)) or "nothing"
            yield from textwrap.wrap(f"{line}  {parts}", WIDTH, subsequent_indent=" " * (len(first) + 2))
    if maps:
        yield from ["", *textwrap.wrap(ROOM_KEPT, WIDTH)]
