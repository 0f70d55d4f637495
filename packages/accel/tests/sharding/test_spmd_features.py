"""What several XLA devices of one process do with the rest of the API: what one device does; with --device=xla."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accel_testing import stretched

pytestmark = [
    pytest.mark.device,
    pytest.mark.timeout(1000),
    pytest.mark.skipif(find_spec("peft") is None, reason="Transformers and peft are not installed"),
]
SCRIPT = Path(__file__).parent / "spmd_script.py"
Told = dict[str, dict[str, Any]]

ALIKE = [
    "clip_grad_value_",
    "weighted losses",
    "bf16",
    "frozen weights",
    "two models",
    "gather_for_metrics",
    "save_state(asynchronous=True)",
    "a checkpoint of one device",
    "save_model",
    "a model on meta, filled before prepare",
    "a model of Transformers",
    "adapters",
]


def told_by(strategy: str, devices: int, folder: Path) -> Told:
    """What the script says of each feature."""
    environ = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    command = [sys.executable, str(SCRIPT), strategy, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=stretched(500), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("told:") for line in done.stdout.splitlines() if line.startswith("told:")]
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    """What one device says, and then four."""
    if request.config.getoption("--device") != "xla" or find_spec("torch_xla") is None:
        pytest.skip("needs --device=xla, and torch_xla with the torch that it was built for")
    folder = tmp_path_factory.mktemp("spmd")
    return told_by("single", 1, folder), told_by("spmd", 4, folder)


def flat(value: Any) -> list[Any]:
    """The numbers and words of nested lists and mappings."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in (key, *flat(value[key]))]
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("feature", ALIKE)
def test_a_feature_does_with_four_devices_what_it_does_with_one(told: tuple[Told, Told], feature: str) -> None:
    wanted, found = (flat(all_told[feature]) for all_told in told)
    tolerance = 2e-2 if feature == "bf16" else 1e-5
    assert len(found) == len(wanted) > 2
    for here, there in zip(found, wanted, strict=True):
        assert here == (pytest.approx(there, rel=tolerance, abs=tolerance) if isinstance(there, float) else there)


def test_a_save_behind_and_masters_are_as_elsewhere(told: tuple[Told, Told]) -> None:
    for of_some in told:
        assert of_some["bf16"]["masters"] == ["torch.float32"]
        behind = of_some["save_state(asynchronous=True)"]
        assert behind["again"] == pytest.approx(behind["after"], rel=1e-6)


def test_what_several_devices_cannot_do_is_refused_in_words(told: tuple[Told, Told]) -> None:
    assert told[1]["fp16"]["refused"] == "XLA trains in bf16; use bf16"
    assert "Model has 8 parameters on the meta device (entrance.weight, " in told[1]["a model on meta"]["refused"]
    assert "load its weights before prepare" in told[1]["a model on meta"]["refused"]
    for feature in ("activation checkpointing", "torch.compile and activation checkpointing"):
        for of_some in told:
            assert "torch draws no random numbers again on xla" in of_some[feature]["refused"]
    for feature in ("torch.compile", "torch.compile of blocks"):
        assert "losses" in told[0][feature]
        assert "torch_xla 2.9 computes wrong gradients then" in told[1][feature]["refused"]
