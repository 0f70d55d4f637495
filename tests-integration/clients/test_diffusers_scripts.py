"""The training scripts of diffusers, as they are, save on two processes by an `if`, and resume from the latest.

They are in no package: `ACCEL_DIFFUSERS_EXAMPLES` names the folder `examples` of a checkout of diffusers. The tests are
skipped without it, and `test_clients` has a script of the same form.
"""

import os
import re
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
EXAMPLES = "ACCEL_DIFFUSERS_EXAMPLES"
Losses = dict[int, float]

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif("ACCEL_CLIENTS" not in os.environ, reason="they take minutes: nox -s clients runs them"),
    pytest.mark.skipif(EXAMPLES not in os.environ, reason=f"{EXAMPLES} names no checkout of diffusers' examples"),
]
#: images are cropped at the centre: Accelerate draws for those of the next batch before a step, and not after it
BOTH = (
    *("--resolution", "8", "--center_crop", "--train_batch_size", "4", "--checkpointing_steps", "2"),
    *("--learning_rate", "1e-3", "--lr_warmup_steps", "1"),
)
ON_TEXT = (*BOTH, "--pretrained_model_name_or_path", "model", "--seed", "1", "--max_train_steps", "6")
#: the arguments of each script for 6 steps, and what it calls its loss
SCRIPTS = {
    "unconditional_image_generation/train_unconditional.py": (
        (
            *(*BOTH, "--model_config_name_or_path", "alone", "--use_ema"),
            *("--eval_batch_size", "2", "--ddpm_num_steps", "50", "--ddpm_num_inference_steps", "2"),
        ),
        "loss",
    ),
    "text_to_image/train_text_to_image.py": (
        (*ON_TEXT, "--use_ema", "--validation_epochs", "1", "--validation_prompts", "digit 1"),
        "train_loss",
    ),
    "text_to_image/train_text_to_image_lora.py": (
        (*ON_TEXT, "--rank", "2", "--num_validation_images", "1", "--validation_prompt", "digit 1"),
        "train_loss",
    ),
}
#: the script that skips what an epoch has served when it resumes: the others begin the epoch again
SKIPS = "unconditional"
RESUMED = ("--resume_from_checkpoint", "latest", "--checkpoints_total_limit", "2")
LAUNCH = ("-m", "accel_launch", "launch", "--as_accelerate", "--cpu", "-n")


def needed() -> None:
    """Skip the test where a library is absent, or Accelerate is another release."""
    try:
        found = {name: version(name) for name in ("accelerate", "diffusers", "peft", "tensorboard", "scikit-learn")}
    except PackageNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    if found["accelerate"] != PEER:
        pytest.skip(f"needs accelerate {PEER}")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of images and models that the scripts train with."""
    needed()
    folder = tmp_path_factory.mktemp("models")
    run(folder, str(HERE / "write_diffusion_models.py"), str(folder), path="")
    return folder


def run(folder: Path, *command: str, path: str | None = None) -> str:
    """Return what a command of Python says.

    Args:
        folder: Where it runs.
        command: Its arguments.
        path: Folders to import from, in place of those of this tree.
    """
    environ = {**silent(folder), "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ |= {"HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    if path is not None:
        environ["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=stretched(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def trained(models: Path, script: str, to: str, launch: tuple[str, ...], *more: str) -> tuple[Losses, str]:
    """Return the losses by step that a script recorded, and what it said.

    Args:
        models: The folder of images and models.
        script: The script, in the examples.
        to: The folder that it writes into, in that of the models.
        launch: What starts it: nothing for one process with Accelerate.
        more: The other arguments.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    own = (str(HERE / "run_diffusers_script.py"), str(Path(os.environ[EXAMPLES], script).absolute()))
    arguments, name = SCRIPTS[script]
    wanted = (*arguments, "--train_data_dir", "images", "--output_dir", to, *more)
    said = run(models, *launch, *own, *wanted, path=None if launch else "")
    losses: Losses = {}
    for events in (models / to / "logs").rglob("events*"):
        found = EventAccumulator(str(events))
        found.Reload()
        if name in found.Tags()["scalars"]:
            losses |= {one.step: one.value for one in found.Scalars(name)}
    return losses, said


def epochs(script: str, count: int) -> tuple[str, ...]:
    """Return the arguments that end the training of 24 images after 6 steps on a count of processes."""
    return ("--num_epochs", str(count)) if SKIPS in script else ()


def resumed(models: Path, script: str, to: str, launch: tuple[str, ...], *more: str) -> tuple[Losses, str]:
    """Return the losses of the steps after the last checkpoint but one, and what was said; as `trained` does."""
    shutil.rmtree(models / to / "checkpoint-6")
    shutil.rmtree(models / to / "logs")
    losses, said = trained(models, script, to, launch, *more, *RESUMED)
    assert "Resuming from checkpoint checkpoint-4" in said
    assert checkpoints(models / to) == ["checkpoint-4", "checkpoint-6"]
    return losses, said


def checkpoints(folder: Path) -> list[str]:
    """Return the names of the checkpoints in a folder."""
    return sorted(path.name for path in folder.glob("checkpoint*"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_losses_of_scripts_of_diffusers_are_those_of_accelerate(script: str, models: Path) -> None:
    """Of one process; from a checkpoint on, Accelerate draws another order."""
    to, one = f"{Path(script).stem}-one", epochs(script, 1)
    whole, _ = trained(models, script, to, (*LAUNCH, "1"), *one)
    peer, _ = trained(models, script, f"{to}-peer", (), *one)
    assert [*peer] == [1, 2, 3, 4, 5, 6]
    assert whole == pytest.approx(peer, abs=1e-6)
    again, _ = resumed(models, script, to, (*LAUNCH, "1"), *one)
    assert [*again] == [5, 6]
    if SKIPS in script:
        assert again == pytest.approx({step: whole[step] for step in (5, 6)}, abs=1e-6)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_of_diffusers_save_and_resume_on_two_processes(script: str, models: Path) -> None:
    to, two = f"{Path(script).stem}-two", epochs(script, 2)
    whole, said = trained(models, script, to, (*LAUNCH, "2"), *two)
    assert [*whole] == [1, 2, 3, 4, 5, 6]
    assert checkpoints(models / to) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    names_the_if = (
        r"save_state is under `if accelerator.is_main_process:?.*` at .*" + re.escape(script) + r":\d+, so that"
    )
    assert len(re.findall(names_the_if, said)) == 1
    again, _ = resumed(models, script, to, (*LAUNCH, "2"), *two)
    assert [*again] == [5, 6]
    if SKIPS in script:
        # the loss of the main process: the noise of the other one begins anew
        assert again[5] == whole[5]
