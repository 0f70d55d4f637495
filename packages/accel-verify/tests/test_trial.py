"""`accel verify` leaves a user's checkpoints as they are, and goes on from none of them."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """\
import torch
from accel import Accelerator, DataLoaderConfiguration, ProjectConfiguration
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(
    project_dir="runs",
    log_with="local",
    project_config=ProjectConfiguration(
        automatic_checkpoint_naming=True, total_limit=2, stop_signals=("SIGTERM", "SIGUSR1")
    ),
    dataloader_config=DataLoaderConfiguration(consumption_log="served.jsonl"),
)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.print(f"resumed from {accelerator.resume()}")
accelerator.init_trackers("project", config={"lr": 0.1})
for epoch in range(loader.iteration, 4):
    served = accelerator.skip_first_batches(loader, 1) if epoch == 1 else loader
    for (inputs,) in served:
        assert loader.iteration == epoch, (loader.iteration, epoch)
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"rate": 0.1})
        accelerator.print(f"saved as {accelerator.save_state()}")
        accelerator.save_state("mydir")
        accelerator.save_state("behind", asynchronous=True)
        accelerator.wait_for_checkpoint()
        accelerator.save_model(model, "weights")
        accelerator.save({"epoch": epoch}, "object.pt")
        if accelerator.stop_requested():
            accelerator.save_and_stop()
"""


Accel = Callable[[str, int], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def accel(forking_python: str, tmp_path: Path) -> Accel:
    """Runs a command on the script, on some processes."""

    def run(command: str, ranks: int) -> "subprocess.CompletedProcess[str]":
        arguments = [forking_python, "-m", "accel_launch", command, "--cpu", "-n", str(ranks)]
        steps = ["--steps", "6"] if command == "verify" else []
        return subprocess.run([*arguments, *steps, "train.py"], cwd=tmp_path, capture_output=True, text=True)

    return run


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.timeout(600)  # 25 s on a quiet machine
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_verification_touches_no_file_and_resumes_nothing(tmp_path: Path, ranks: int, accel: Accel) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for begun in (False, True):
        if begun:
            trained = accel("launch", ranks)
            assert trained.returncode == 0, trained.stdout + trained.stderr
        before = files(tmp_path)
        assert any("checkpoint_" in path for path in before) == begun
        done = accel("verify", ranks)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "dropout is off, nothing is saved or resumed\n" in done.stdout
        assert "accel verify: nothing differs in 6 optimizer steps\n" in done.stdout
        assert done.stdout.count("resumed from None") == 2, "rank 0 is shown, and plain PyTorch"
        assert done.stdout.count("checkpoint_0\n") == 12, "automatic names begin anew"
        assert files(tmp_path) == before


RESUME = 'accelerator.print(f"resumed from {accelerator.resume()}")'
LOAD = 'accelerator.load_state("mydir")'


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_that_a_script_insists_on_is_refused_in_words(tmp_path: Path, ranks: int, accel: Accel) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace(RESUME, LOAD))
    done = accel("verify", ranks)
    assert done.returncode == 1
    assert "load_state('mydir'): accel verify runs a script as its first run, and loads no checkpoint" in done.stderr
    assert "accel verify: the script failed as configured: nothing was compared" in done.stdout


def test_a_script_that_goes_on_without_a_checkpoint_does_so(tmp_path: Path, accel: Accel) -> None:
    tried = f"import contextlib, accel\nwith contextlib.suppress(accel.CheckpointError):\n    {LOAD}"
    (tmp_path / "train.py").write_text(SCRIPT.replace(RESUME, tried))
    done = accel("verify", 1)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_script_that_saves_and_stops_is_compared_as_far_as_it_goes(tmp_path: Path, accel: Accel) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("if accelerator.stop_requested()", "if loader.iteration == 0"))
    done = accel("verify", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing differs in 1 optimizer steps (the script ended before the 6 that were asked for)" in done.stdout
