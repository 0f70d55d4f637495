"""Write bytes in words."""


def size_of(count: float) -> str:
    """Return bytes in words, such as 1.5 GB."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(count) >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"
