"""An object whose pickle runs code."""

import os
from pathlib import Path
from typing import Any


class Evil:
    """Makes a folder when its pickle is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)
