"""Draw device maps as an SVG that is the same file for the same numbers, on a ground of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from accel_big.estimate_map import MapEstimate, Share, join_neighbours
from accel_big.estimate_text import human
from accel_state.failure_file import printable

#: of devices: two shades, which parts have in turn
_SHADES = {"cpu": ("#eab08e", "#f3cdb7"), "disk": ("#93c99f", "#bfe0c6")}
_ACCELERATOR = ("#9db4da", "#c3d1ea")
_LEFT, _BAR, _ROW, _HEIGHT = 70, 400, 30, 20
_LETTER = 6.2


def draw(made_by: str, maps: Sequence[MapEstimate], file: Path) -> None:
    """Write a picture of device maps: a bar for each device, as long as what it may take. What is left is empty.

    Args:
        made_by: Where the model is from, in words.
        maps: Device maps of the model.
        file: SVG to write.

    Raises:
        CannotRun: The file cannot be written.
    """
    rows = sum(max(1, len(found.shares)) + 1 for found in maps)
    height = rows * _ROW + 24
    size = {"width": "700", "height": str(height), "viewBox": f"0 0 700 {height}"}
    picture = Element("svg", xmlns="http://www.w3.org/2000/svg", **size, attrib={"font-family": "sans-serif"})
    SubElement(picture, "title").text = f"Device maps of {printable(made_by)}"
    SubElement(picture, "rect", width="100%", height="100%", fill="white")
    y = 4
    for found in maps:
        _text(picture, 8, y + 22, found.dtype if found.shares else f"{found.dtype}: {found.refusal}", size=13)
        y += _ROW
        longest = max((share.taken for share in found.shares), default=0)
        allowed = max((share.allowed or 0 for share in found.shares), default=0)
        # a bar that is many times as long as what lies there would leave no room to see that
        scale = _BAR / max(1, longest, min(allowed, 3 * longest))
        for share in found.shares:
            _bar(picture, y, share, scale)
            y += _ROW
    file.write_text(tostring(picture, encoding="unicode") + "\n", encoding="utf-8")


def _bar(picture: Element, y: int, share: Share, scale: float) -> None:
    _text(picture, _LEFT - 8, y + 15, share.device, end=True)
    x = float(_LEFT)
    shades = _SHADES.get(share.device, _ACCELERATOR)
    for index, (name, size) in enumerate(join_neighbours(share.parts)):
        width = size * scale
        part = _rectangle(picture, x, y, width, fill=shades[index % 2])
        SubElement(part, "title").text = f"{printable(name)}: {human(size)}"
        if len(name) * _LETTER < width:
            _text(picture, x + 4, y + 14, name)
        x += width
    limit = _BAR if share.allowed is None else min(_BAR, share.allowed * scale)
    if share.allowed is not None:
        _rectangle(picture, _LEFT, y, limit, fill="none", stroke="#555555")
    room = "no limit" if share.left is None else f"{human(share.left)} left"
    _text(picture, _LEFT + _BAR + 8, y + 15, f"{human(share.taken)}, {room}")


def _rectangle(picture: Element, x: float, y: int, width: float, **paint: str) -> Element:
    place = {"x": f"{x:.1f}", "y": str(y), "width": f"{width:.1f}", "height": str(_HEIGHT)}
    return SubElement(picture, "rect", {**place, **paint})


def _text(picture: Element, x: float, y: int, words: str, *, size: int = 11, end: bool = False) -> None:
    place = {"x": f"{x:.1f}", "y": str(y), "font-size": str(size), "text-anchor": "end" if end else "start"}
    SubElement(picture, "text", place, fill="#222222").text = printable(words)
