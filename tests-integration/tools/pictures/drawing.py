"""A picture of boxes, words and arrows, as the text of an SVG file."""

from __future__ import annotations

from html import escape

#: light enough for black words, and unlike each other for people who do not see red and green apart
COLORS = ("#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6")
GRAY = "#d0d0d0"


class Drawing:
    """An SVG that grows by calls; its file is black on white, and the site gives it the colours of the page."""

    def __init__(self, width: int, height: int) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
            ' font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
        ]

    def words(self, x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> None:
        """A line of text; `y` is its foot."""
        self._lines.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, color: str, text: str = "", dash: str = "") -> None:
        """A filled box with a word in it; `dash` outlines it."""
        edge = f' stroke="#000000" stroke-dasharray="{dash}"' if dash else ""
        self._lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{color}"{edge}/>'
        )
        if text:
            self._lines.append(
                f'<text x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" text-anchor="middle" fill="#111111">'
                f"{escape(text)}</text>"
            )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, dash: str = "") -> None:
        """A line."""
        edge = f' stroke-dasharray="{dash}"' if dash else ""
        self._lines.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#000000" stroke-width="1.2"{edge}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A line that goes down or up to a tip, or to the right."""
        self.line(x1, y1, x2, y2)
        if x1 == x2:
            back = -5 if y2 > y1 else 5
            self.line(x2, y2, x2 - 4, y2 + back)
            self.line(x2, y2, x2 + 4, y2 + back)
        else:
            self.line(x2, y2, x2 - 5, y2 - 4)
            self.line(x2, y2, x2 - 5, y2 + 4)

    def __str__(self) -> str:
        return "\n".join([*self._lines, "</svg>", ""])
