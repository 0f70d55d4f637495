"""A device that only tests have passes the checks for makers of hardware, with no change in accel."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_state import release
from accel_state.devices.cpu import Cpu
from accel_testing import stretched
from conformance import checks
from conformance.check import NotOffered
from silent_environ import silent
from suite.recording_backend import missing
from torch import nn

STUB = """
from typing import final

import torch
from accel_state import Device


def load():
    from suite.recording_backend import register
    from suite.recording_device import DeviceTensor, RecordingDevice

    global RUNNING
    RUNNING = RecordingDevice(register()).installed()
    RUNNING.__enter__()
    torch.nn.Buffer = DeviceTensor  # its tensors are of a class of their own, which a real device has no need for


@final
class Stub(Device):
    kind = "recording"

    @property
    def group_backend(self):
        return "gloo"

    def place(self, local_rank):
        return torch.device("recording", 0)

    def hardware_id(self, placed_on):
        return None

    def rng_state(self):
        return torch.get_rng_state()

    def set_rng_state(self, state):
        torch.set_rng_state(state)

    def release_memory(self):
        pass
"""
ENTRY_POINTS = """[torch.backends]
recording = stub_hardware:load

[accel.devices]
recording = stub_hardware:Stub
"""
# What a maker brings who serves torch alone, and leaves accel to its class for all that torch names.
OF_TORCH = """
import torch
from suite import recording_backend
from suite.recording_device import DeviceTensor, RecordingDevice


def load():
    recording_backend.NAME = "tpu"
    module = recording_backend._Module
    module.get_rng_state, module.set_rng_state = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)
    torch.distributed.Backend.default_device_backend_map["tpu"] = "gloo"
    global RUNNING
    RUNNING = RecordingDevice(recording_backend.register()).installed()
    RUNNING.__enter__()
    torch.nn.Buffer = DeviceTensor
"""


NAMES = {check.__name__.replace("_", " ") for mine in checks.CHECKS.values() for check in mine}


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """The next test makes its own run, whatever this one made."""
    yield
    release()


def conformance(python: str, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    environ = silent(folder)
    environ.update(PYTHONPATH=f"{folder}{os.pathsep}{environ['PYTHONPATH']}", TMPDIR=str(folder))
    command = [python, "-m", "conformance", *words, "--json"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=stretched(240))
    return ended.returncode, json.loads(ended.stdout)


def install(folder: Path, module: str, entry_points: str) -> None:
    """Lets the command, and what it starts, find a distribution in a folder of their path."""
    (folder / "stub_hardware.py").write_text(module)
    information = folder / "stub_hardware-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stub-hardware\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(entry_points)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("size", [1, 2])
def test_a_device_of_torch_passes_without_a_class_of_its_own(tmp_path: Path, size: int) -> None:
    """By the entry point of torch alone, as TPUs come to torch without torch_xla; one process for each device."""
    install(tmp_path, OF_TORCH, "[torch.backends]\ntpu = stub_hardware:load\n")
    _, told = conformance(sys.executable, tmp_path, "--device", "tpu", "-n", str(size))
    # fully_shard does not take the stand-in's tensors, which are of a class of their own, and the command ends there
    sharded = "sharded training has the numbers of the cpu"
    passed = {row["check"] for row in told["checks"] if row["outcome"] == "passed"}
    assert {row["check"] for row in told["checks"]} - passed == {sharded}
    assert passed >= {
        "ranks exchange tensors",
        "training has the numbers of the cpu",
        "a checkpoint goes on bit for bit",
    }


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_device_that_another_distribution_brings_passes(tmp_path: Path) -> None:
    """T37: entry points alone; the stub is on the path of the command and of what it starts."""
    install(tmp_path, STUB, ENTRY_POINTS)
    code, told = conformance(sys.executable, tmp_path, "--device", "recording")
    assert [row for row in told["checks"] if row["outcome"] == "failed"] == []
    assert code == 0
    passed = {row["check"] for row in told["checks"] if row["outcome"] == "passed"}
    assert NAMES - passed == {"sharded training has the numbers of the cpu"}


def test_two_processes_on_the_cpu_pass_all_checks(tmp_path: Path, forking_python: str) -> None:
    """And leave no file behind."""
    code, told = conformance(forking_python, tmp_path, "--device", "cpu", "-n", "2")
    assert {row["outcome"] for row in told["checks"]} == {"passed"}, told
    assert code == 0
    assert {row["check"] for row in told["checks"]} > NAMES
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_device_that_is_not_there_fails(tmp_path: Path, forking_python: str) -> None:
    code, told = conformance(forking_python, tmp_path, "--device", "npu")
    assert code == 1
    assert [row["outcome"] for row in told["checks"]] == ["failed"]
    assert "accel found the device" in told["checks"][0]["words"]


def forget(*_: Any) -> None:
    """What a device does that has not implemented a method."""


def half_of(accelerator: Accelerator, tensor: torch.Tensor, how: str) -> torch.Tensor:
    return tensor / 2


@pytest.mark.parametrize(
    ("owner", "method", "wrong", "check"),
    [
        (Cpu, "set_rng_state", forget, checks.the_generator_goes_back_to_a_state),
        (Accelerator, "load_state", forget, checks.a_checkpoint_goes_on_bit_for_bit),
        (Accelerator, "reduce", half_of, checks.training_has_the_numbers_of_the_cpu),
        (
            nn.utils,
            "clip_grad_norm_",
            lambda *_, **__: torch.zeros(()),
            checks.gradients_are_clipped_to_the_norm_of_the_cpu,
        ),
        (Accelerator, "backward", forget, checks.accumulated_micro_batches_are_one_batch),
    ],
)
def test_what_a_device_does_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: Any,
    method: str,
    wrong: Any,
    check: Callable[[Accelerator], None],
) -> None:
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)
    check(accelerator)
    accelerator.free_memory()
    monkeypatch.setattr(owner, method, wrong)
    with pytest.raises(AssertionError):
        check(accelerator)


def test_one_process_is_told_that_it_shares_nothing() -> None:
    with pytest.raises(NotOffered, match="use -n 2"):
        checks.sharded_training_has_the_numbers_of_the_cpu(Accelerator(cpu=True))
