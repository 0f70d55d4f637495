"""Puts the pictures of docs/pictures into the pages, so that their text and lines have the colour of the theme.

On GitHub the same link shows the file, which is black on white. A picture whose words have colours stays a file.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

IMAGE = re.compile(r"^!\[(?P<words>[^\]]*)\]\((?P<path>[^)\s]*pictures/[^)\s]+\.svg)\)$", re.MULTILINE)
ROOT = re.compile(r"<svg\b[^>]*>")
NOT_SHOWN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)
#: a name that nothing in the picture refers to, such as figure_1, is in other pictures of the page too
NAME = re.compile(r' id="[a-z.]+\d*_\d+"')
#: words without a colour of their own
WORDS = re.compile(r"<text\b(?![^>]*\bfill=)")
BACKGROUND = re.compile(r'<rect width="100%" height="100%" fill="white"/>')
COLORS = (("#ffffff", "none"), ("#000000", "currentColor"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the change of pages with Sphinx."""
    app.connect("source-read", take_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def take_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Replaces each picture of a page by its content."""
    folder = (Path(app.srcdir) / page).parent

    def drawn(match: re.Match[str]) -> str:
        svg = (folder / match["path"]).read_text(encoding="utf-8")
        # all colours of such a picture were chosen for its own background
        if not WORDS.search(svg):
            return match[0]
        return f"\n```{{raw}} html\n{themed(svg, match['words'])}\n```\n"

    source[0] = IMAGE.sub(drawn, source[0])


def themed(svg: str, words: str) -> str:
    """The picture in the colours of the page around it, as wide as the page allows, with `words` for who hears it.

    Raises: ValueError if the picture has no size.
    """
    svg = BACKGROUND.sub("", NAME.sub("", NOT_SHOWN.sub("", svg))).strip()
    root = ROOT.search(svg)
    size = re.search(r'\bwidth="([\d.]+)(?:pt|px)?" height="([\d.]+)', root[0]) if root is not None else None
    if root is None or size is None:
        raise ValueError(f"the picture {words!r} has no root with width and height; draw it anew: nox -s pictures")
    for color, instead in COLORS:
        svg = svg.replace(color, instead)
    label = html.escape(words, quote=True)
    opening = (
        f'<svg class="picture" role="img" aria-label="{label}" viewBox="0 0 {size[1]} {size[2]}" fill="currentColor"'
        ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' font-family="sans-serif" font-size="12" style="max-width: {float(size[1]) * 1.35:g}px">'
    )
    # an empty line would end the block of HTML
    return re.sub(r"\n\s*\n", "\n", ROOT.sub(opening, svg, count=1))
