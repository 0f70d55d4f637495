"""Libraries that import accelerate train on accel as they are, with the losses of Accelerate beside it (S184).

`nox -s clients` has an environment with all of them; where a library is absent its tests are skipped.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from accel_testing import stretched
from silent_environ import silent

HERE = Path(__file__).parent
#: the release that the figures are compared with
PEER = "1.15.0"
NEEDS = {
    "train_with_trainer.py": ("transformers", "peft"),
    "train_with_trl.py": ("trl",),
    "train_unet.py": ("diffusers",),
}


def absent(*names: str) -> list[str]:
    found = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            found.append(name)
    return found


def trained(folder: Path, script: str, command: list[str]) -> dict[str, list[list[float]]]:
    folder.mkdir()
    environ = {**silent(folder), "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "TOKENIZERS_PARALLELISM": "false"}
    if "accel_launch" not in command:
        environ["PYTHONPATH"] = ""
    done = subprocess.run(
        [sys.executable, *command, str(HERE / script), str(folder)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=stretched(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[list[float]]] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.timeout(600)
@pytest.mark.skipif("ACCEL_CLIENTS" not in os.environ, reason="they take minutes: nox -s clients runs them")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("script", NEEDS)
def test_losses_are_those_of_accelerate(script: str, count: int, tmp_path: Path) -> None:
    missing = absent(*NEEDS[script])
    if missing or absent("accelerate") or version("accelerate") != PEER:
        pytest.skip(f"needs {', '.join(missing) or f'accelerate {PEER}'}")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    peer = trained(tmp_path / "peer", script, torchrun if count > 1 else [])
    launch = ["-m", "accel_launch", "launch", "--as_accelerate", "--cpu", "-n", str(count)]
    ours = trained(tmp_path / "ours", script, launch)
    assert str(peer.pop("by")).startswith("accelerate.")
    assert str(ours.pop("by")).startswith("accel.")
    assert ours.keys() == peer.keys()
    for name, losses in peer.items():
        assert len(ours[name]) == len(losses), name
        for one, other in zip(ours[name], losses, strict=True):
            assert one == pytest.approx(other, abs=1e-6), name
