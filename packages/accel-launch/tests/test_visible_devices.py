"""Accelerators counted without torch."""

from pathlib import Path

import pytest
from accel_launch.job.visible_devices import visible_devices


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null", "xnvidia3"):
        (tmp_path / name).touch()
    return tmp_path


def test_s104b_device_nodes_are_counted(dev: Path) -> None:
    assert len(visible_devices({}, dev)) == 3


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("0", 1), ("0,1,2,3", 4), ("-1", 0), ("0,-1,1", 1), ("GPU-aa, GPU-bb", 2), ("NoDevFiles", 0)],
)
def test_visible_devices_are_believed(dev: Path, visible: str, count: int) -> None:
    assert len(visible_devices({"CUDA_VISIBLE_DEVICES": visible}, dev)) == count


def test_a_machine_without_nodes_has_none(tmp_path: Path) -> None:
    assert len(visible_devices({}, tmp_path)) == 0
    assert len(visible_devices({}, tmp_path / "missing")) == 0
