"""The command `python -m pictures`: draws all pictures of the pages that are not curves of `nox -s scale`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import memory_picture

from pictures import device_maps, divided_data, dying_rank, windows

FOLDER = Path(__file__).parents[3] / "docs" / "pictures"

PICTURES: dict[str, Callable[[], str]] = {
    "accumulation-windows": lambda: windows.windows(windows.all_steps()),
    "data-endings": divided_data.endings,
    "data-order": divided_data.shuffled_order,
    "dying-rank": lambda: dying_rank.timeline(dying_rank.death()),
    "layers-on-disk": device_maps.device_map,
    "sharding-memory": memory_picture.picture,
}


def main() -> int:
    """Draws each picture anew."""
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(path.relative_to(FOLDER.parents[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
