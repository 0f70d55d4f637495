"""Draws the pictures of docs/explanation/data.md: what each process is served, by the loaders themselves.

`python tests-integration/tools/data_pictures.py` draws them anew and writes them into the page.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accel_data import DataLoaderShard, prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "data.md"
PICTURE = re.compile(r"(<!-- picture: (\w+) -->\n```text\n).*?(```)", re.DOTALL)

Steps = list[list[str]]


class Numbers(IterableDataset[int]):
    """A stream that can be cut into shards."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def shard(self, num_shards: int, index: int) -> "Numbers":
        """Every `num_shards`-th number."""
        return Numbers(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)


def shuffled(size: int, count: int = 16) -> DataLoader[Any]:
    order = torch.Generator().manual_seed(1)
    # a range is indexed like a dataset
    return DataLoader(range(count), size, shuffle=True, generator=order)  # type: ignore[arg-type]


def in_order(size: int, count: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(range(count), size, **more)  # type: ignore[arg-type] # a range is indexed like a dataset


def served(loader: Any) -> list[str]:
    """The batches of one process, as text; a star marks a sample that was seen before."""
    cells = []
    for batch in loader:
        tail = loader.accumulation.active.tail
        real = len(batch) if tail is None else tail.real[loader.plan.rank.index]
        cells.append(" ".join(f"{number}{'' if place < real else '*'}" for place, number in enumerate(batch.tolist())))
    return cells


def world(make: Callable[[], DataLoader[Any]], processes: int, **settings: Any) -> list[DataLoaderShard[Any]]:
    loaders: Any = [
        prepare_data_loader(make(), num_processes=processes, process_index=rank, **settings)
        for rank in range(processes)
    ]
    return list(loaders)


def drawn(rows: list[list[str]]) -> str:
    """A row for each process, a column for each step."""
    steps = max(map(len, rows))
    widths = [max(len(row[step]) if step < len(row) else 0 for row in rows) for step in range(steps)]
    lines = []
    for rank, row in enumerate(rows):
        cells = [(row[step] if step < len(row) else "").ljust(width) for step, width in enumerate(widths)]
        lines.append(f"process {rank} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def whole(make: Callable[[], DataLoader[Any]], processes: int, **settings: Any) -> str:
    return drawn([served(loader) for loader in world(make, processes, **settings)])


def resumed() -> str:
    """Two processes serve two steps, then one goes on, then four."""
    state: dict[str, Any] | None = None
    text = ""
    for processes, steps in ((2, 2), (1, 1), (4, 9)):
        loaders = world(lambda: shuffled(8 // processes, 40), processes)  # noqa: B023 - used at once
        rows = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            cells, after = [], state
            for number, batch in enumerate(loader, start=1):
                cells.append(" ".join(map(str, batch.tolist())))
                if number == steps:
                    after = loader.state_dict()
                    break
            rows.append(cells)
        state = after
        text += drawn(rows) + ("\n" if processes < 4 else "")
    return text


def pictures() -> dict[str, str]:
    """Every picture of the page, by name."""
    return {
        "shuffled": whole(lambda: shuffled(2), 2),
        "split": whole(lambda: in_order(4, 16), 2, split_batches=True),
        "pad": whole(lambda: in_order(2, 11), 3),
        "drop": whole(lambda: in_order(2, 11), 3, ending="drop"),
        "exact": whole(lambda: in_order(2, 11), 3, ending="exact"),
        "join": whole(lambda: in_order(2, 11), 3, ending="join"),
        "stream": whole(lambda: DataLoader(Numbers(range(16)), 2), 2),
        "resumed": resumed(),
    }


def page(text: str) -> str:
    """The page with its pictures drawn anew."""
    drawings = pictures()
    return PICTURE.sub(lambda found: found[1] + drawings[found[2]] + found[3], text)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PAGE.write_text(page(PAGE.read_text()))
