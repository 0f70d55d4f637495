"""A window of accumulation, drawn from the steps of an Accelerator: a picture of docs/guides/accumulation.md."""

from __future__ import annotations

from accel import Accelerator, GradientAccumulationPlugin
from accel_state import release

from pictures.drawing import COLORS, GRAY, Drawing

BATCHES, WINDOW, EPOCHS = 10, 4, 2
WAYS = ("flush", "drop", "carry")


def steps(at_epoch_end: str) -> list[bool]:
    """Whether the optimizer steps after each batch of all epochs."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    plugin = GradientAccumulationPlugin(num_steps=WINDOW, at_epoch_end=at_epoch_end)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = torch.nn.Linear(1, 1)
    data = DataLoader(TensorDataset(torch.ones(BATCHES, 1)), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    made = []
    for _ in range(EPOCHS):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                before = [parameter.detach().clone() for parameter in model.parameters()]
                accelerator.backward(model(inputs).sum())
                optimizer.step()
                optimizer.zero_grad()
                after = list(model.parameters())
                made.append(any(bool((a != b).any()) for a, b in zip(before, after, strict=True)))
    release()
    return made


def all_steps() -> dict[str, list[bool]]:
    """Of each way to end an epoch."""
    return {way: steps(way) for way in WAYS}


def windows(made: dict[str, list[bool]]) -> str:
    """A row of batches for each way; batches of one step have one colour, and those without a step are gray."""
    side, left = 24, 84
    picture = Drawing(left + EPOCHS * (BATCHES * (side + 2) + 14) + 10, 72 + len(made) * 56)
    for epoch in range(EPOCHS):
        x = left + epoch * (BATCHES * (side + 2) + 14)
        picture.words(x, 16, f"epoch {epoch + 1}: {BATCHES} batches", size=13)
    for row, (way, stepped) in enumerate(made.items()):
        top = 28 + row * 56
        picture.words(left - 8, top + 16, f'"{way}"', anchor="end")
        window = 0
        for number, now in enumerate(stepped):
            epoch, place = divmod(number, BATCHES)
            x = left + epoch * (BATCHES * (side + 2) + 14) + place * (side + 2)
            rest = stepped[number:] if way == "carry" else stepped[number : (epoch + 1) * BATCHES]
            color = COLORS[window % 2] if any(rest) else GRAY
            picture.box(x, top, side, side, color, str(place + 1))
            if now:
                picture.arrow(x + side / 2, top + side + 14, x + side / 2, top + side + 2)
                picture.words(x + side / 2, top + side + 25, "step", anchor="middle", size=10)
                window += 1
    bottom = 28 + len(made) * 56 + 16
    picture.box(left, bottom, 14, 14, GRAY)
    picture.words(left + 20, bottom + 11, "no step: these gradients are thrown away")
    return str(picture)
