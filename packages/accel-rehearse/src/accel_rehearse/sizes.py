"""Write bytes in words."""


def size_of(count: float) -> str:
    """Return bytes in words, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.4g} {unit}"
