"""The metadata that programs ask for before they use Accelerate."""

from __future__ import annotations

from importlib.metadata import Distribution
from os import PathLike
from pathlib import Path
from typing import final

from accel_compat.finder import UPSTREAM, VERSION

_FILES = {
    # sentence-transformers looks for the owner in the home page
    "METADATA": f"Metadata-Version: 2.1\nName: {UPSTREAM}\nVersion: {VERSION}\nSummary: answered by accel-compat\n"
    "Home-page: https://github.com/huggingface/accelerate\n",
    "top_level.txt": f"{UPSTREAM}\n",
    "INSTALLER": "accel-compat\n",
}


@final
class AliasDistribution(Distribution):
    """A distribution `accelerate` of the release whose names accel answers. No file of it is installed."""

    def read_text(self, filename: str) -> str | None:
        """Return the text of a file of metadata, or None for any other file."""
        return _FILES.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Path:
        """Return the path of a file beside this package."""
        return Path(__file__).parent.parent / path
