"""Read sizes as people write them."""

import re
from fractions import Fraction

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size_in_bytes(size: int | str, *, least: int = 1) -> int:
    """Return the number of bytes in a size such as 500, "500", "10GB" or "2 GiB".

    Args:
        size: Size in words or as a number.
        least: Fewest bytes that it may be.

    Raises:
        ValueError: It is other text, or a smaller size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(f"size {size!r}: expected a number of bytes, or a number and one of {', '.join(UNITS)[2:]}")
    count = int(Fraction(match[1]) * UNITS[match[2].upper()])
    if count < least:
        raise ValueError(f"size {size!r}: expected at least one byte")
    return count
