"""How data is divided, drawn from what prepared loaders serve: pictures of docs/explanation/data.md."""

from __future__ import annotations

from typing import Any

import data_pictures
from data_pictures import in_order, served, shuffled

from pictures.drawing import COLORS, GRAY, Drawing

SIDE = 26


def batches(loaders: list[Any]) -> list[list[list[str]]]:
    """The samples of each process and step; a star marks a sample that was served before."""
    return [[cell.split() for cell in served(loader)] for loader in loaders]


def shuffled_order() -> str:
    """Sixteen shuffled samples: the order of plain PyTorch, and the turns in which two processes are served it."""
    order = [int(number) for batch in shuffled(2) for number in batch]
    ranks = batches(data_pictures.world(lambda: shuffled(2), 2))
    owner = {int(sample): rank for rank, steps in enumerate(ranks) for step in steps for sample in step}
    left, width = 86, 86 + len(order) * (SIDE + 2) + 44
    picture = Drawing(width, 180)
    picture.words(left, 16, "the order of one process, batch_size=2", size=13)
    for place, number in enumerate(order):
        picture.box(left + place * (SIDE + 2) + place // 4 * 10, 26, SIDE, SIDE, COLORS[owner[number]], str(number))
    for rank, steps in enumerate(ranks):
        top = 96 + rank * (SIDE + 6)
        picture.words(left - 8, top + 17, f"process {rank}", anchor="end")
        for step, samples in enumerate(steps):
            for place, sample in enumerate(samples):
                x = left + (4 * step + 2 * rank + place) * (SIDE + 2) + step * 10
                picture.box(x, top, SIDE, SIDE, COLORS[rank], sample)
    for step in range(len(ranks[0])):
        x = left + 4 * step * (SIDE + 2) + step * 10
        picture.line(x, 60, x + 4 * (SIDE + 2) - 2, 60)
        picture.words(x + 2 * (SIDE + 2), 76, f"step {step + 1}", anchor="middle")
    return str(picture)


ENDINGS = {
    'ending="pad" (the default)': {},
    'ending="drop"': {"ending": "drop"},
    'ending="exact"': {"ending": "exact"},
    'ending="join"': {"ending": "join"},
}


def endings() -> str:
    """Eleven samples for three processes, two for each step, by each way to end."""
    picture = Drawing(640, 300)
    for number, (title, ways) in enumerate(ENDINGS.items()):
        left, top = 76 + number % 2 * 310, 30 + number // 2 * 140
        picture.words(left, top - 8, title, size=13)
        ranks = batches(data_pictures.world(lambda: in_order(2, 11), 3, **ways))
        for rank, steps in enumerate(ranks):
            y = top + rank * (SIDE + 6)
            picture.words(left - 8, y + 17, f"process {rank}", anchor="end")
            for step, samples in enumerate(steps):
                for place, sample in enumerate(samples):
                    again = sample.endswith("*")
                    x = left + (2 * step + place) * (SIDE + 2) + step * 12
                    color = GRAY if again else COLORS[rank]
                    picture.box(x, y, SIDE, SIDE, color, sample.rstrip("*"), dash="3 2" if again else "")
    picture.box(76, 276, 14, 14, GRAY, dash="3 2")
    picture.words(96, 287, "served before; gather_for_metrics leaves it out")
    return str(picture)
