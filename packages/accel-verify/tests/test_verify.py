"""`accel verify`: right scripts pass, wrong ones do not, and the command says which."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel.step.training_step import TrainingStep
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler, WindowScaler
from accel_data import DataLoaderShard
from accel_launch.cli import main
from accel_parallel import TorchSteps
from accel_state import AccumulationState
from accel_verify.runner import RunComparison

DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits.py"

RIGHT: dict[str, dict[str, Any]] = {
    "one process": dict(ranks=1, accumulation=1),
    "two processes": dict(accumulation=1, clip=0.1),
    "shuffled": dict(shuffle=True),
    "accumulation": dict(ranks=1, accumulation=4, clip=0.1),
    "both": dict(accumulation=4, clip=0.1, zero_first=True),
    "a short window": dict(accumulation=4, samples=40),
    "a window that is dropped": dict(accumulation=4, samples=40, at_epoch_end="drop"),
    "a window that is carried": dict(accumulation=4, samples=40, at_epoch_end="carry"),
    "samples that fill up": dict(samples=43),
    "samples that are dropped": dict(samples=43, drop_last=True),
    "weights": dict(weights=True, accumulation=4, samples=40, clip=0.1),
    "split batches": dict(split=True),
    "a schedule that is not prepared": dict(prepared_schedule=False),
    "a schedule that counts steps": dict(once=True),
    "bf16": dict(precision="bf16", clip=0.5),
    "fp16": dict(precision="fp16", clip=0.5),
    "steps that fp16 skips": dict(precision="fp16", scale=2.0**24),
    "float64": dict(dtype=torch.float64),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_passes(verified: Callable[..., RunComparison], name: str) -> None:
    found = verified(**RIGHT[name])
    assert found.same, "\n".join(found.lines)
    assert found.lines[0] == "accel verify: nothing differs in 4 optimizer steps"
    assert not [line for line in found.lines if "warning" in line]


def test_a_script_that_ends_early_is_compared_as_far_as_it_goes(verified: Callable[..., RunComparison]) -> None:
    found = verified(epochs=3, samples=16)
    assert found.same
    assert found.lines[0].endswith("differs in 3 optimizer steps (the script ended before the 4 that were asked for)")


def test_plain_pytorch_uses_none_of_the_step_code(
    verified: Callable[..., RunComparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("plain PyTorch has called what it is to be compared with")

    # here, and not in the processes that run as configured
    for kind in (AcceleratedOptimizer, AcceleratedScheduler, DataLoaderShard):
        monkeypatch.setattr(kind, "__init__", refuse)
    for owner, name in (
        (TrainingStep, "scale_loss"),
        (WindowScaler, "scale_loss"),
        (AccumulationState, "tick"),
        (TorchSteps, "clip_norm"),
    ):
        monkeypatch.setattr(owner, name, refuse)
    found = verified(clip=0.1, weights=True, accumulation=4, samples=40)
    assert found.same, "\n".join(found.lines)


Verify = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def verify(forking_python: str, tmp_path: Path) -> Verify:
    """Runs `accel verify` with some arguments."""

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [forking_python, "-m", "accel_launch", "verify", "--cpu", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


@pytest.mark.timeout(600)  # 25 s on a quiet machine
def test_the_command_finds_nothing_in_the_example(tmp_path: Path, verify: Verify) -> None:
    done = verify("-n", "2", "--steps", "3", DIGITS, "--epochs", "1", "--output", "weights")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accel verify: nothing differs in 3 optimizer steps\n" in done.stdout
    assert not list(tmp_path.iterdir()), "a trial writes no weights"


SCRIPT = """\
import sys, torch
from accel import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 2))
loader = torch.utils.data.DataLoader(data, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for number, (inputs,) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(inputs).square().mean()
        {line}
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("line", "ranks", "said"),
    [
        ("accelerator.backward(loss * (1 + accelerator.process_index))", 2, "accel verify: step 1: loss: "),
        ("raise LookupError('mine')", 1, "LookupError: mine"),
        ("loss.backward()", 1, "the script never called accelerator.backward(loss)"),
    ],
)
def test_the_command_says_what_a_script_did(tmp_path: Path, line: str, ranks: int, said: str, verify: Verify) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(line=line))
    done = verify("-n", str(ranks), "--steps=9", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout + done.stderr


OF_SEQUENCES = """\
import torch
from accel import Accelerator
from accel_sequence import attention, loss, positions

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = torch.nn.Embedding(32, 8), torch.nn.Linear(8, 32)

    def forward(self, tokens):
        hidden = (self.tokens(tokens) + positions(tokens)[..., None] / 16).unflatten(-1, (2, 4)).transpose(1, 2)
        return self.head(attention(hidden, hidden, hidden, is_causal=True).transpose(1, 2).flatten(2))

accelerator, model = Accelerator(), Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randint(0, 32, (24, 9)), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for tokens in loader:
    accelerator.backward(loss(model(tokens), tokens, shifted=False) {more})
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("more", "code", "said"), [("", 0, "nothing differs in 4"), ("* 2", 1, "gradient")])
def test_the_command_compares_divided_sequences(
    tmp_path: Path, more: str, code: int, said: str, verify: Verify
) -> None:
    more = "* (1 + (accelerator.num_processes > 1 and accelerator.process_index))" if more else ""
    (tmp_path / "train.py").write_text(OF_SEQUENCES.replace("{more}", more))
    done = verify("-n", "2", "--parallelism_config_sp_size", "2", "--steps=4", "train.py")
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_the_command_refuses_what_it_cannot_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--cpu", "--steps", "none", "--tolerance=-1", "missing.py"]) == 2
    problems = capsys.readouterr().err
    for problem in ("--steps: expected", "--tolerance: expected", "script 'missing.py' does not exist"):
        assert problem in problems


def test_help_names_the_options_of_this_command_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--cpu", "-n", "2", "--help"]) == 0
    text, problems = capsys.readouterr()
    assert problems == ""
    for words in ("--steps N", "--tolerance TOLERANCE", "--consumption_log FILE", "exit codes:"):
        assert words in text
