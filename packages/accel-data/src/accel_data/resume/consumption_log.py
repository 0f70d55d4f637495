"""Log what a loader has served, line by line: `accel verify` proves from it that nothing was lost."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from accel_data.resume.loader_state import LoaderState


@dataclass(frozen=True, slots=True)
class ConsumptionLog:
    """A file to which a loader adds one line at each start, resume and end of an epoch.

    Args:
        path: The file, whose folder is made if it is missing.
        loader: Name of the loader in its lines.
    """

    path: Path
    loader: str = "0"

    def write(self, event: str, state: LoaderState, *, world: int) -> None:
        """Append a line for an event.

        After a crash, a line is in the file whole or not at all.

        Args:
            event: "start", "resume", "end" or "left".
            state: The state of the loader.
            world: Number of ranks that share the data.
        """
        line = {
            "loader": self.loader,
            "event": event,
            "epoch": state.epoch,
            "at": state.consumed,
            "of": state.length,
            "unit": state.unit,
            "step": state.step,
            "order": _digest(state.rng_at_start),
            "digest": state.digest,
            "dataset": state.dataset,
            "world": world,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _digest(drawn_from: dict[str, Any]) -> str:
    states = {name: state.tolist() if isinstance(state, torch.Tensor) else state for name, state in drawn_from.items()}
    return f"{zlib.crc32(json.dumps(states, sort_keys=True).encode()):08x}"
