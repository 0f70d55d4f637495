"""Checkpoints of 200 MB of weights with AdamW on one process: saved, saved behind, loaded, and the memory it takes."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks.exchanges.libraries import accelerator
from benchmarks.row import Lineup, Repetition, Row, Skipped, Unit

WIDTH, LAYERS = 1024, 48
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

Task = tuple[nn.Module, torch.optim.Optimizer]


def task() -> Task:
    """A model of 200 MB with the state of AdamW after one step."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def folder(owner: nn.Module) -> Path:
    """A folder that goes with what uses it."""
    path = Path(tempfile.mkdtemp(prefix="accel-bench-"))
    weakref.finalize(owner, shutil.rmtree, path, ignore_errors=True)
    return path


def timed(does: Callable[[], Any], *, before: Callable[[], Any] = int, after: Callable[[], Any] = int) -> Repetition:
    """Seconds of what it does, without what comes before and after."""

    def repeat() -> float:
        before()
        began = perf_counter()
        does()
        took = perf_counter() - began
        after()
        return took

    return repeat


def written(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Both in one file by torch.save, on the disk."""
    with path.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def _raw_save() -> Repetition:
    model, optimizer = task()
    path = folder(model) / "state.pt"
    return timed(lambda: written(model, optimizer, path), before=lambda: path.unlink(missing_ok=True))


def _save(library: str) -> Repetition:
    owner, path = _owner(library)
    return timed(lambda: owner.save_state(path), before=lambda: shutil.rmtree(path, ignore_errors=True))


def _owner(library: str) -> tuple[Any, Path]:
    owner = accelerator(library)
    model, _ = owner.prepare(*task())
    return owner, folder(model) / "state"


def _by_dcp() -> float:
    """Seconds of torch.distributed.checkpoint, into a new folder each time."""
    from torch.distributed.checkpoint.state_dict_saver import save

    model, optimizer = task()
    took = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="accel-bench-") as path:
            began = perf_counter()
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=path)
            took.append(perf_counter() - began)
    return median(took)


def _saves() -> Lineup:
    makers = {"raw": _raw_save, "accel": lambda: _save("accel"), "accelerate": lambda: _save("accelerate")}
    return Lineup.of(makers, remark=lambda: f"torch.distributed.checkpoint {_by_dcp():.2f} s")


def copy() -> Repetition:
    """Seconds of a copy of all tensors."""
    model, optimizer = task()
    state = optimizer.state_dict()["state"]
    tensors = [*model.state_dict().values(), *(one for entry in state.values() for one in entry.values())]
    copies = [torch.empty_like(one) for one in tensors]

    def each() -> None:
        for one, other in zip(copies, tensors, strict=True):
            one.copy_(other)

    return timed(each)


def _stall() -> Repetition:
    owner, path = _owner("accel")
    return timed(
        lambda: owner.save_state(path, asynchronous=True),
        before=lambda: shutil.rmtree(path, ignore_errors=True),
        after=owner.wait_for_checkpoint,
    )


def _stalls() -> Lineup:
    return Lineup.of({"raw": copy, "accel": _stall, "accelerate": lambda: _save("accelerate")})


def _raw_load() -> Repetition:
    model, optimizer = task()
    path = folder(model) / "state.pt"
    written(model, optimizer, path)

    def load() -> None:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return timed(load)


def _load(library: str) -> Repetition:
    owner, path = _owner(library)
    owner.save_state(path)
    return timed(lambda: owner.load_state(path))


def _loads() -> Lineup:
    makers = {"raw": _raw_load, "accel": lambda: _load("accel"), "accelerate": lambda: _load("accelerate")}
    return Lineup.of(makers)


def _weights() -> tuple[nn.Module, Path]:
    from safetensors.torch import save_file

    model, _ = task()
    path = folder(model) / "model.safetensors"
    save_file(model.state_dict(), path, metadata={"format": "pt"})
    return model, path


def _raw_weights() -> Repetition:
    from safetensors import safe_open

    model, path = _weights()

    def read() -> None:
        state = model.state_dict()
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                state[name].copy_(file.get_tensor(name))

    return timed(read)


def _weights_by(library: str) -> Repetition:
    accelerator(library)
    load = import_module(f"{library}.utils").load_checkpoint_in_model
    model, path = _weights()
    return timed(lambda: load(model, str(path)))


def _weight_loads() -> Lineup:
    makers = {
        "raw": _raw_weights,
        "accel": lambda: _weights_by("accel"),
        "accelerate": lambda: _weights_by("accelerate"),
    }
    return Lineup.of(makers)


def _peak_bytes(does: Callable[[], Any]) -> Repetition:
    def repeat() -> float:
        CLEAR.write_text("5")  # the peak begins at what there is now
        does()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(), flags=re.MULTILINE)
        return float(found.group(1)) * 1024 if found is not None else float("nan")

    return repeat


def _peaks() -> Lineup:
    if not CLEAR.exists():
        raise Skipped(f"the peak of a process is set back by {CLEAR}, which this system does not have")
    owner, path = _owner("accel")

    def save() -> None:
        shutil.rmtree(path, ignore_errors=True)
        owner.save_state(path)

    return Lineup.of({"raw": lambda: _peak_bytes(int), "accel": lambda: _peak_bytes(save)})


def _row(what: str, build: Callable[[], Lineup], target: float, against: str = "", unit: Unit = Unit.SECONDS) -> Row:
    return Row(f"checkpoint, {what}", build, target, against=against, least=5, most=15, warm_up=2, unit=unit)


ROWS = (
    _row("save of 600 MB, durable", _saves, 1.1),
    _row("stall of a save behind, over a copy", _stalls, 1.3),
    _row("stall of a save behind, over Accelerate's save", _stalls, 0.15, "accelerate"),
    _row("load of 600 MB, verified", _loads, 1.0, "accelerate"),
    _row("load_checkpoint_in_model of 200 MB", _weight_loads, 1.15),
    # 64 MB of what the process has: torch, the state, and the states that loaded before
    _row("peak memory of a save", _peaks, 1.07, unit=Unit.BYTES),
)
