"""Write bytes in words."""


def size_of(count: float) -> str:
    """Return bytes in words, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
