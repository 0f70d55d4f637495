"""`accel estimate-memory --max_memory`: what lies where, what it takes, and what is left."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accel_big.estimate_map import join_neighbours, map_estimate, memory_of
from torch import nn

Run = Callable[..., "subprocess.CompletedProcess[str]"]

MODELS = """\
import torch
from torch import nn


def make():
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(12)))
"""
#: of a layer in float32
LAYER = 4 * (256 * 256 + 256)


def tower(layers: int = 12) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(256, 256) for _ in range(layers)))


def test_each_part_is_on_one_device_and_all_bytes_are_counted() -> None:
    """S146."""
    memory: dict[int | str, int] = {0: 5 * LAYER, 1: 2 * LAYER, "cpu": 3 * LAYER}
    found = map_estimate(tower(), memory, "float32")
    assert [(share.device, share.allowed, share.taken) for share in found.shares] == [
        ("0", 5 * LAYER, 4 * LAYER),
        ("1", 2 * LAYER, 2 * LAYER),
        ("cpu", 3 * LAYER, 2 * LAYER),
        ("disk", None, 4 * LAYER),
    ]
    assert [name for share in found.shares for name, _ in share.parts] == [str(index) for index in range(12)]


def test_sizes_are_those_of_the_dtype_whatever_the_model_was_built_in() -> None:
    halves = tower(2).to(torch.bfloat16)
    memory: dict[int | str, int] = {"cpu": 10 * LAYER}
    for dtype, size in (("float32", 2 * LAYER), ("bfloat16", LAYER), ("int4", LAYER // 4)):
        for model in (tower(2), halves):
            [share] = map_estimate(model, memory, dtype).shares
            assert (share.device, share.parts) == ("cpu", (("", size),))


def test_a_model_that_fits_nowhere_is_said_with_its_numbers() -> None:
    found = map_estimate(tower(), {"cpu": LAYER, "disk": LAYER}, "float32")
    assert (found.shares, found.refusal) == ((), f"1 needs {LAYER:,} bytes more, of {12 * LAYER:,} of the whole model")


def test_numbered_neighbours_are_one() -> None:
    parts = [("embed", 1), ("h.0", 2), ("h.1", 2), ("h.2", 2), ("h.4.up", 3), ("h.5", 2), ("h.6", 2), ("g.7", 1)]
    assert join_neighbours(parts) == [("embed", 1), ("h.0-2", 6), ("h.4.up", 3), ("h.5-6", 4), ("g.7", 1)]
    assert join_neighbours([("", 7)]) == [("all of it", 7)]


def test_devices_are_named_by_index_and_all_that_is_wrong_is_told() -> None:
    assert memory_of(["cpu=1KB", "xyz:1=2KiB", "0=0", "disk=3"]) == ({0: 0, 1: 2048, "cpu": 1000, "disk": 3}, [])
    _, problems = memory_of(["0=1KB", "xyz:0=1KB", "gpu=1GB", "1=much", "cpu"])
    assert [problem.split(":")[0] for problem in problems] == [
        "--max_memory names 0 twice",
        "--max_memory gpu=1GB",
        "--max_memory 1=much",
        "--max_memory cpu",
    ]


def test_the_command_prints_the_maps(accel: Run, tmp_path: Path) -> None:
    """S146."""
    (tmp_path / "models.py").write_text(MODELS)
    memory = ["--max_memory", f"0={4 * LAYER + LAYER // 3}", "cpu=1MiB"]
    words = ["estimate-memory", "models:make", "--dtypes", "fp32", "bf16"]
    done = accel(*words, *memory)
    assert done.returncode == 0, done.stderr
    assert "\nfloat32 " in done.stdout
    said = json.loads(accel(*words, *memory, "--json").stdout)["device_maps"]
    assert [found["dtype"] for found in said] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max_memory", "gpu=1GB"], "--max_memory gpu=1GB: expected DEVICE=SIZE"),
        (["--max_memory", "--json"], "--max_memory needs a value, found none"),
    ],
)
def test_what_cannot_be_mapped_is_refused(accel: Run, tmp_path: Path, words: list[str], problem: str) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    done = accel("estimate-memory", "models:make", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
