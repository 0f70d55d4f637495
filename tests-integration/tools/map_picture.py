"""Draws the picture of docs/guides/big-models.md; `python tests-integration/tools/map_picture.py` writes it anew."""

from pathlib import Path

import torch
from accel_big.estimate_map import map_estimate, memory_of
from device_map_drawing import draw
from torch import nn

PLACE = Path(__file__).parents[2] / "docs" / "pictures" / "device-map.svg"


class Block(nn.Module):
    """A block with as many numbers as those of a model of 7 billion numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4096, 4 * 4096, bias=False)
        self.up = nn.Linear(4096, 2 * 11008, bias=False)
        self.down = nn.Linear(11008, 4096, bias=False)


class Model(nn.Module):
    """A language model of 7 billion numbers."""

    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32000, 4096)
        self.layers = nn.ModuleList(Block() for _ in range(32))
        self.head = nn.Linear(4096, 32000, bias=False)


def picture(place: Path) -> None:
    """Draws what lies where on an accelerator of 8 GB beside 12 GB for the CPU."""
    with torch.device("meta"):
        model = Model()
    memory, _ = memory_of(["0=8GB", "cpu=12GB"])
    maps = [map_estimate(model, memory, dtype) for dtype in ("float32", "bfloat16", "int8")]
    draw("a model of 7 billion numbers", maps, place)


if __name__ == "__main__":
    picture(PLACE)
