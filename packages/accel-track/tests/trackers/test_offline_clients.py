"""Runs of clients that record offline, read back from what they left on the disk."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accel_testing import stretched
from accel_track.trackers import TRACKERS

RECORD = str(Path(__file__).with_name("record_offline.py"))
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("launcher", [(), TWO], ids=["one process", "two processes"])
@pytest.mark.parametrize("name", ["aim", "clearml", "comet_ml", "dvclive", "swanlab", "trackio"])
def test_what_was_logged_is_read_back(
    name: str, launcher: tuple[str, ...], tmp_path: Path, expected: dict[str, list[float]], config: dict[str, Any]
) -> None:
    """S137: once, however many processes; they are of their own, as clients leave patches, threads and settings."""
    if TRACKERS.load(name).missing() is not None:
        pytest.skip(f"{name} is not installed: nox -s trackers")
    own = {"CLEARML_OFFLINE_MODE": "1", "COMET_OFFLINE_DIRECTORY": "comet", "TRACKIO_DIR": str(tmp_path / "io")}
    # else ClearML forks while a thread of it starts git; the fork may keep a pipe open on whose end that thread waits
    (tmp_path / "clearml.conf").write_text("sdk { development { report_use_subprocess: false } }")
    environment = {**os.environ, **own, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "DO_NOT_TRACK": "1"}
    for command in ([sys.executable, *launcher, RECORD, name, "write"], [sys.executable, RECORD, name, "read"]):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=stretched(100)
        )
        assert done.returncode == 0, done.stdout + done.stderr
    metrics, found = json.loads((tmp_path / "found.json").read_text())
    assert set(metrics) == set(expected)
    for metric, values in expected.items():
        assert [step for step, _ in metrics[metric]] == list(range(100))
        assert [value for _, value in metrics[metric]] == pytest.approx(values)
    assert found == config
