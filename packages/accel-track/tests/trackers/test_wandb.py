"""Weights & Biases offline, its files read back by its own messages."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wandb", reason="wandb is not installed: nox -s trackers")

from accel_track.trackers.wandb import WandbTracker

pytestmark = pytest.mark.leaves("environment", "children", "threads")


BLOCK = 32768


def messages(path: Path) -> Iterator[bytes]:
    """The messages of a file in LevelDB's log format, which is what wandb writes: 7 bytes of its own come first."""
    data, place, parts = path.read_bytes(), 7, b""
    while place + 7 < len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def history(folder: Path) -> list[dict[str, Any]]:
    """What was logged in all runs of the folder, by the client's own messages."""
    kinds: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for message in messages(path):
            record = kinds.Record.FromString(message)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


def test_a_run_in_two_lives_is_read_back(
    offline: Path, write_steps: Callable[..., None], expected: dict[str, list[float]], config: dict[str, Any]
) -> None:
    """S137: metrics, configuration, an image, a table; the second half by a second life of the same run."""
    tracker = WandbTracker("project", mode="offline", dir=str(offline))
    assert tracker.missing() is None
    tracker.start()
    tracker.store_init_configuration(config)
    assert tracker.tracker.config["model"] == {"layers": 2}
    write_steps(tracker, 0, 50)
    state = tracker.state_dict()
    tracker.finish()
    again = WandbTracker("project", mode="offline", dir=str(offline))
    again.resume(state)
    assert again.tracker.id == state["run"]
    write_steps(again, 50)
    again.log_images({"image": [np.zeros((4, 4, 3), np.uint8)]}, step=100)
    again.log_table("table", ["a"], [[1]], step=101)
    again.finish()
    lines = history(offline)
    for name, values in expected.items():
        assert [line[name] for line in lines if name in line] == pytest.approx(values)
    assert [line["_step"] for line in lines if "loss" in line] == list(range(100))
    assert any("image" in str(list(line)) for line in lines)
    assert any("table" in str(list(line)) for line in lines)
    again.client.teardown()


def test_two_processes_record_once(record_on_two: Callable[[str], Path], expected: dict[str, list[float]]) -> None:
    """S137."""
    lines = history(record_on_two("wandb"))
    for name, values in expected.items():
        assert [line[name] for line in lines if name in line] == pytest.approx(values)
    assert [line["_step"] for line in lines if "loss" in line] == list(range(100))
