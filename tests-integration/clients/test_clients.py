"""Libraries that import accelerate train on accel as they are, with the losses of Accelerate beside it (S184).

`nox -s clients` has an environment with all of them; where a library is absent its tests are skipped.
"""

import json
import os
import shutil
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
Found = dict[str, list[list[float]]]

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("ACCEL_CLIENTS" not in os.environ, reason="they take minutes: nox -s clients runs them"),
]
NEEDS = {
    "train_with_trainer.py": ("transformers", "peft"),
    "train_with_trl.py": ("trl",),
    "train_unet.py": ("diffusers",),
}
#: on several processes these draw other samples or noise than with Accelerate
NEEDS_OF_ONE = {
    "train_sentences.py": ("sentence-transformers", "setfit"),
    "train_diffusion.py": ("denoising-diffusion-pytorch", "ema-pytorch"),
    "evaluate_by_lm_eval.py": ("lm-eval",),
}
AS_DIFFUSERS = "train_as_diffusers.py"


def absent(*names: str) -> list[str]:
    """Return those of these packages that are not installed."""
    found = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            found.append(name)
    return found


def skip_without(*names: str) -> None:
    """Skip the test if a package is absent, or Accelerate is another release."""
    missing = absent(*names)
    if missing or absent("accelerate") or version("accelerate") != PEER:
        pytest.skip(f"needs {', '.join(missing) or f'accelerate {PEER}'}")


def trained(folder: Path, script: str, command: list[str], *arguments: str) -> Found:
    """Return what a script writes into a folder.

    Args:
        folder: The folder, the first argument of the script.
        script: The name of the script.
        command: What starts it.
        arguments: The other arguments.
    """
    folder.mkdir(exist_ok=True)
    environ = {**silent(folder), "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "TOKENIZERS_PARALLELISM": "false"}
    if "accel_launch" not in command:
        environ["PYTHONPATH"] = ""
    done = subprocess.run(
        [sys.executable, *command, str(HERE / script), str(folder), *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=stretched(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (folder / "stderr.txt").write_text(done.stderr)
    found: Found = json.loads((folder / "found.json").read_text())
    return found


def with_accelerate(folder: Path, script: str, count: int, *arguments: str) -> Found:
    """Return what a script finds with Accelerate, on a number of processes."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    found = trained(folder, script, torchrun if count > 1 else [], *arguments)
    assert str(found.pop("by")).startswith("accelerate.")
    return found


def on_accel(folder: Path, script: str, count: int, *arguments: str) -> Found:
    """Return what a script finds on accel, on a number of processes."""
    launch = ["-m", "accel_launch", "launch", "--as_accelerate", "--cpu", "-n", str(count)]
    found = trained(folder, script, launch, *arguments)
    assert str(found.pop("by")).startswith("accel.")
    return found


def assert_equal(ours: Found, peer: Found) -> None:
    """Raise unless all numbers are equal, up to the last digits of a float."""
    assert ours.keys() == peer.keys()
    for name, losses in peer.items():
        assert len(ours[name]) == len(losses), name
        for one, other in zip(ours[name], losses, strict=True):
            assert one == pytest.approx(other, abs=1e-6), name


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("script", NEEDS)
def test_losses_are_those_of_accelerate(script: str, count: int, tmp_path: Path) -> None:
    skip_without(*NEEDS[script])
    peer = with_accelerate(tmp_path / "peer", script, count)
    assert_equal(on_accel(tmp_path / "ours", script, count), peer)


@pytest.mark.parametrize("script", NEEDS_OF_ONE)
def test_numbers_of_one_process_are_equal_and_two_run(script: str, tmp_path: Path) -> None:
    skip_without(*NEEDS_OF_ONE[script])
    peer = with_accelerate(tmp_path / "peer", script, 1)
    assert_equal(on_accel(tmp_path / "ours", script, 1), peer)
    two = on_accel(tmp_path / "two", script, 2)
    assert {name: len(numbers) for name, numbers in two.items()} == {
        name: len(numbers) for name, numbers in peer.items()
    }


@pytest.mark.parametrize("kind", ["unconditional", "text_to_image", "lora"])
def test_scripts_of_diffusers_save_on_the_main_process_and_resume(kind: str, tmp_path: Path) -> None:
    """By an `if` that names the main process: Accelerate runs it on several, and so does accel for such programs."""
    skip_without("diffusers", "peft")
    peer = with_accelerate(tmp_path / "peer", AS_DIFFUSERS, 1, "--kind", kind)
    assert_equal(on_accel(tmp_path / "one", AS_DIFFUSERS, 1, "--kind", kind), peer)
    options = ("--kind", kind, "--checkpointing_steps", "2", "--max_train_steps", "8")
    whole = on_accel(tmp_path / "two", AS_DIFFUSERS, 2, *options)
    told = (tmp_path / "two" / "stderr.txt").read_text()
    assert told.count("so that the main process saves without the others") == 1
    assert "`if accelerator.is_main_process or" in told
    for newer in (6, 8):
        shutil.rmtree(tmp_path / "two" / f"checkpoint-{newer}")
    more = ("--resume_from_checkpoint", "latest", "--checkpoints_total_limit", "2")
    resumed = on_accel(tmp_path / "two", AS_DIFFUSERS, 2, *options, *more)
    assert resumed["first step"] == [[4]]
    # its own loss on the main process; the noise of the other one begins anew
    assert resumed["losses"][0][0] == whole["losses"][4][0]
    assert sorted(path.name for path in (tmp_path / "two").glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]
