"""Where layers go, drawn from the maps that accel-big makes: a picture of docs/guides/big-models.md."""

from __future__ import annotations

import torch
from accel import infer_auto_device_map, init_empty_weights

from pictures.drawing import COLORS, GRAY, Drawing

LAYERS = 8


def places() -> dict[str, list[str]]:
    """The device of each of eight equal layers, by what the CPU may take, in sizes of a layer."""
    with init_empty_weights():
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(LAYERS)))
    size = sum(parameter.nbytes for parameter in model[0].parameters())
    found = {}
    for layers in (9, 6, 3):
        plan = infer_auto_device_map(model, max_memory={"cpu": layers * size})
        found[f'{{"cpu": {layers} layers}}'] = [str(place_of(plan, str(layer))) for layer in range(LAYERS)]
    return found


def place_of(plan: dict[str, object], name: str) -> object:
    """The device of a module: of its own entry, or of the model's."""
    return plan.get(name, plan.get(""))


def device_map() -> str:
    """A row of layers for each size of memory."""
    side, left = 40, 130
    picture = Drawing(left + LAYERS * (side + 4) + 10, 150)
    for row, (words, devices) in enumerate(places().items()):
        top = 10 + row * 36
        picture.words(left - 8, top + 18, words, anchor="end")
        for layer, device in enumerate(devices):
            color = COLORS[0] if device == "cpu" else GRAY
            picture.box(left + layer * (side + 4), top, side, 28, color, device)
    picture.words(left, 138, "layers 0 to 7, in the order in which they compute, and where each is kept")
    return str(picture)
