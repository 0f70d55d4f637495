"""A run that was trained a little, and a checkpoint as it writes it."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from accel_checkpoint import Manifest, StagedCheckpoint
from accel_checkpoint.filesystem import Filesystem
from suite.toy_models import Mlp


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """The next test makes its own run, where package accel is there and this one has used it."""
    yield
    state: Any = sys.modules.get("accel_state")
    if state is not None:
        state.release()


class Registered:
    def __init__(self) -> None:
        self.value: dict[str, Any] = {"tensor": torch.arange(4.0), "array": numpy.arange(3), "count": 3}

    def state_dict(self) -> dict[str, Any]:
        return self.value

    def load_state_dict(self, value: dict[str, Any]) -> None:
        self.value = value


def trained() -> tuple[Any, Any, Any, Registered]:
    accel = pytest.importorskip("accel")
    accelerator = accel.Accelerator(cpu=True)
    model = Mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    for _ in range(2):
        accelerator.backward(model(torch.ones(2, 8)).sum())
        optimizer.step()
        optimizer.zero_grad()
    registered = Registered()
    accelerator.register_for_checkpointing(registered)
    return accelerator, model, optimizer, registered


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as `save_state` writes it; without that, the same files."""
    folder = tmp_path_factory.mktemp("good") / "checkpoint_0"
    try:
        trained()[0].save_state(folder)
    except pytest.skip.Exception:  # package accel is not there, as in the session `unit`
        stage = StagedCheckpoint(folder)
        for number, name in enumerate(("model.safetensors", "optimizer.safetensors", "state.safetensors")):
            stage.write_tensors(name, {"x": torch.full((64,), float(number))})
        stage.seal(Manifest({}, stage.files))
        stage.commit()
    return folder


class InterruptedFilesystem(Filesystem):
    """Calls `interrupt` before a rename or removal: before the one after `effects` others, or from there on."""

    def __init__(self, interrupt: Callable[[], None], effects: int, *, from_there_on: bool = False) -> None:
        self.interrupt, self.left, self.from_there_on = interrupt, effects, from_there_on

    def _effect(self) -> None:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.from_there_on):
            self.interrupt()

    def rename(self, path: Path, to: Path) -> None:
        self._effect()
        super().rename(path, to)

    def remove(self, path: Path) -> None:
        self._effect()
        super().remove(path)


@pytest.fixture
def interrupted() -> Callable[..., Filesystem]:
    """Makes a filesystem on which another job does its work, or the process dies, between two effects of a save."""
    return InterruptedFilesystem


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    (tmp_path / "secret.safetensors").write_bytes((good / "model.safetensors").read_bytes())
    return Path(shutil.copytree(good, tmp_path / "checkpoint_0"))


@pytest.fixture(name="trained")
def training() -> Callable[[], tuple[Any, Any, Any, Registered]]:
    """Makes an accelerator, its model and optimizer after two steps, and what is registered with it."""
    return trained
