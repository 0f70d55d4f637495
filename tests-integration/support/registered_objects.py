"""Objects in checkpoints: something with a state, as users register it, and something whose pickle runs code."""

import os
from pathlib import Path
from typing import Any


class Box:
    """Something with a state."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Evil:
    """Makes a folder when its pickle is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)
