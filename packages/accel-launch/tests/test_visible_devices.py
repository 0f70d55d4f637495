"""Accelerators counted without torch."""

from pathlib import Path

import pytest
from accel_launch.job.visible_devices import visible_devices


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null", "xnvidia3"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def test_device_nodes_are_counted(dev: Path) -> None:
    """S104b."""
    assert len(visible_devices({}, dev)) == 3


@pytest.mark.parametrize(
    ("visible", "count"),
    [("", 0), ("0", 1), ("0,1,2,3", 4), ("-1", 0), ("0,-1,1", 1), ("GPU-aa, GPU-bb", 2), ("NoDevFiles", 0)],
)
def test_visible_devices_are_believed(dev: Path, visible: str, count: int) -> None:
    assert len(visible_devices({"CUDA_VISIBLE_DEVICES": visible}, dev)) == count


@pytest.mark.parametrize("mask", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_variables_of_amd_are_believed(tmp_path: Path, mask: str) -> None:
    assert visible_devices({mask: "1,2"}, tmp_path) == ["1", "2"]


def test_variables_of_amd_hide_no_gpu_of_nvidia(dev: Path) -> None:
    assert len(visible_devices({"HIP_VISIBLE_DEVICES": "1"}, dev)) == 3


def test_gpus_of_amd_are_those_of_its_compute_driver(tmp_path: Path) -> None:
    """The processor is a node too; graphics nodes may be of anybody's."""
    for number, gpu_id in enumerate(("0", "51234", "4098")):
        node = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "gpu_id").write_text(f"{gpu_id}\n")
    assert visible_devices({}, tmp_path) == ["0", "1"]


@pytest.mark.parametrize(("told", "count"), [("GPU 0: A (UUID: x)\\nGPU 1: B (UUID: y)", 2), ("no", 0)])
def test_in_wsl_the_tool_of_nvidia_is_asked(tmp_path: Path, told: str, count: int) -> None:
    """There is one node for all GPUs."""
    tool = tmp_path / "usr/lib/wsl/lib/nvidia-smi"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"#!/bin/sh\nprintf '{told}\\n'\n")
    tool.chmod(0o755)
    assert visible_devices({}, tmp_path) == []
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert len(visible_devices({}, tmp_path)) == count


def test_a_machine_without_nodes_has_none(tmp_path: Path) -> None:
    assert len(visible_devices({}, tmp_path)) == 0
    assert len(visible_devices({}, tmp_path / "missing")) == 0
