"""What lies in a folder."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes | None]:
    """The bytes of each file by its path from the folder, and None for each folder in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
