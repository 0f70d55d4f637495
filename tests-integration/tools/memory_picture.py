"""What a rank holds of each trained number, by layout: the arithmetic and the picture of docs/guides/sharding.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "sharding-memory.svg"
COLORS = {"parameters": "#4c72b0", "gradients": "#dd8452", "masters": "#8172b3", "moments of AdamW": "#55a868"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes for each trained number on one of `ranks` ranks. Units: bytes."""

    name: str
    parameters: float
    gradients: float
    moments: float
    masters: float = 0.0

    @property
    def total(self) -> float:
        """All of them together."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by what they are, in the order in which they are drawn."""
        sizes = (self.parameters, self.gradients, self.masters, self.moments)
        return dict(zip(COLORS, sizes, strict=True))


def float32(name: str, parts: int) -> Layout:
    """Each number once in float32 with its gradient and two moments, divided over `parts` ranks."""
    return Layout(name, 4 / parts, 4 / parts, 8 / parts)


def zero(stage: int, ranks: int) -> Layout:
    """DeepSpeed in bf16: parameters and gradients in bfloat16, masters and moments in float32."""
    parts = [ranks if stage >= needed else 1 for needed in (3, 2, 1)]
    return Layout(f"ZeRO {stage}, bf16", 2 / parts[0], 2 / parts[1], 8 / parts[2], masters=4 / parts[2])


def layouts(ranks: int) -> list[Layout]:
    """The layouts of `ranks` ranks, which HSDP and tensor parallel divide by two."""
    return [
        float32("ddp", 1),
        zero(1, ranks),
        zero(2, ranks),
        float32("tp 2", 2),
        float32(f"HSDP, 2 x {ranks // 2}", ranks // 2),
        zero(3, ranks),
        float32("fsdp2", ranks),
        float32(f"fsdp2 + tp, {ranks // 2} x 2", ranks),
    ]


def drawn(rows: Sequence[Layout], title: str) -> str:
    """The picture: one bar for each layout, of its parts."""
    left, scale, height = 150, 26, 22
    bottom = 40 + height * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{bottom + 34}" font-family="sans-serif"'
        ' font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="20" font-size="13">{title}</text>',
    ]
    for number, layout in enumerate(rows):
        top, x = 32 + height * number, float(left)
        lines.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{layout.name}</text>')
        for name, size in layout.parts.items():
            if size:
                lines.append(
                    f'<rect x="{x:g}" y="{top}" width="{size * scale:g}" height="{height - 6}" fill="{COLORS[name]}"/>'
                )
                x += size * scale
        lines.append(f'<text x="{x + 6:g}" y="{top + 13}">{layout.total:g}</text>')
    x = left
    for name, color in COLORS.items():
        lines.append(f'<rect x="{x}" y="{bottom + 8}" width="12" height="12" fill="{color}"/>')
        lines.append(f'<text x="{x + 17}" y="{bottom + 18}">{name}</text>')
        x += 34 + 7 * len(name)
    return "\n".join([*lines, "</svg>", ""])


def picture() -> str:
    """The picture of the page, for eight ranks."""
    return drawn(layouts(8), "bytes for each trained number, on each of 8 ranks")


if __name__ == "__main__":
    PICTURE.write_text(picture())
