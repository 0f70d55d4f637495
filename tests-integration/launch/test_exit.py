"""How a script ends: quietly when it is done, with its own error when it is not."""

import subprocess
import sys
from pathlib import Path

import pytest
import vote_at_exit
from jobs import start_by_hand
from suite.soak import Cases

LOOP = """
import torch
from accel import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(0)  # the same data on every process
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(40, 4), torch.randint(3, (40,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
for inputs, targets in loader:
    accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
    optimizer.step()
    optimizer.zero_grad()
"""

# A thread that needs the interpreter once the group is closed, as gloo's do: then the main thread has to give it.
WAITS = """
import os, sys, threading, time
from types import SimpleNamespace
import torch.distributed as dist
from accel_comm import process_group

process_group.time = SimpleNamespace(sleep=lambda seconds: time.sleep(20 * seconds))  # for a machine with other work
close, closed = dist.destroy_process_group, threading.Event()

def close_and_tell():
    close()
    sys.setswitchinterval(60)
    closed.set()

dist.destroy_process_group = close_and_tell
threading.Thread(target=lambda: closed.wait() and os.write(1, b"let go\\n"), daemon=True).start()
"""


def launched(script: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    launch = [python, "-m", "accel_launch", "launch", "--cpu", "-n", "2", str(script)]
    return subprocess.run(launch, capture_output=True, text=True)


def test_a_loop_that_ends_with_its_last_step_exits_quietly(forking_python: str, tmp_path: Path) -> None:
    """S1: no barrier, no save."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    done = launched(script, forking_python)
    assert (done.returncode, done.stderr) == (0, "")


# Without the pause at exit every other of these runs has ended in SIGABRT, with some releases of torch.
@pytest.mark.soak(only=True)
def test_the_threads_of_gloo_have_time_to_end(cases: Cases, tmp_path: Path) -> None:
    """S1: Python tears down its modules, which forked programs do not."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP + WAITS)
    for _ in cases(1, 5):
        done = launched(script)
        assert (done.returncode, done.stdout, done.stderr) == (0, "let go\n" * 2, "")


@pytest.mark.soak(only=True)
def test_an_error_after_the_loop_is_the_error_of_the_job(cases: Cases, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP + "accelerator.reduce(3.0)\n")
    for _ in cases(1, 10):
        done = launched(script)
        assert done.returncode == 1, done.stderr
        assert "reduce (sum) takes tensors" in done.stderr
        assert "SIGABRT" not in done.stderr


def test_a_vote_under_way_when_python_ends_aborts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As between machines, where a thread waits for the vote."""
    monkeypatch.setenv("ACCEL_SHARED_MEMORY", "0")
    first, second = start_by_hand(Path(vote_at_exit.__file__), tmp_path / "at the very end")
    done, other = first.end(), second.end()
    assert (done.code, other.code) == (1, 1), done.err + other.err
    assert "LookupError: the sample that nobody has" in done.err
    assert "terminate called" not in done.err
