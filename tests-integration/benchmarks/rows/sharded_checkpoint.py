"""Checkpoints of a model that two processes share: accel, gathered on rank 0, and torch.distributed.checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.row import Lineup, Repetition, Row
from benchmarks.rows.checkpoint import folder, timed

#: 128 MiB of weights, and twice as much state of AdamW
WIDTH, LAYERS = 1024, 32


def _task() -> tuple[Any, Any, Any, Path]:
    """The sharded model and its optimizer after one step, and a folder that both processes know."""
    from accel import Accelerator

    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    model: Any = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer: Any = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(1, WIDTH)).sum())
    optimizer.step()
    optimizer.zero_grad()
    places = [str(folder(model))]
    dist.broadcast_object_list(places)
    return accelerator, model, optimizer.optimizer, Path(places[0])


def _between(does: Callable[[], Any], before: Callable[[], Any] = int) -> Repetition:
    """Seconds from when all processes begin until all have ended."""

    def all_do() -> None:
        does()
        dist.barrier()

    def all_before() -> None:
        before()
        dist.barrier()

    return timed(all_do, before=all_before)


def _states(model: Any, optimizer: Any, *, whole: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=whole, cpu_offload=whole)
    return get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)


def _gathered(model: Any, optimizer: Any, path: Path) -> None:
    """Rank 0 gathers all and writes one file, which is on the disk then."""
    states = _states(model, optimizer, whole=True)
    if dist.get_rank() == 0:
        with (path / "gathered.pt").open("wb") as file:
            torch.save(states, file)
            file.flush()
            os.fsync(file.fileno())


def _distributed(model: Any, optimizer: Any, path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    weights, state = _states(model, optimizer)
    save({"model": weights, "optimizer": state}, checkpoint_id=path / "distributed")


def _remove(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path, ignore_errors=True) if dist.get_rank() == 0 else None


def _save_by_hand(does: Callable[[Any, Any, Path], None]) -> Repetition:
    _, model, optimizer, path = _task()
    return _between(lambda: does(model, optimizer, path), before=_remove(path / "distributed"))


def _save_by_accel() -> Repetition:
    accelerator, _, _, path = _task()
    return _between(lambda: accelerator.save_state(path / "accel"), before=_remove(path / "accel"))


def _load_gathered() -> Repetition:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    _, model, optimizer, path = _task()
    _gathered(model, optimizer, path)

    def load() -> None:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        weights, state = torch.load(path / "gathered.pt") if dist.get_rank() == 0 else ({}, {})
        set_model_state_dict(model, weights, options=options)
        set_optimizer_state_dict(model, optimizer, state, options=options)

    return _between(load, before=optimizer.state.clear)


def _load_distributed() -> Repetition:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    _, model, optimizer, path = _task()
    _distributed(model, optimizer, path)

    def load_all() -> None:
        weights, state = _states(model, optimizer)
        load({"model": weights, "optimizer": state}, checkpoint_id=path / "distributed")
        set_model_state_dict(model, weights)
        set_optimizer_state_dict(model, optimizer, state)

    return _between(load_all, before=optimizer.state.clear)


def _load_by_accel() -> Repetition:
    accelerator, _, optimizer, path = _task()
    accelerator.save_state(path / "accel")
    return _between(lambda: accelerator.load_state(path / "accel"), before=optimizer.state.clear)


def _saves() -> Lineup:
    return Lineup.of(
        {
            "raw": lambda: _save_by_hand(_gathered),
            "accel": _save_by_accel,
            "torch.distributed.checkpoint": lambda: _save_by_hand(_distributed),
        }
    )


def _loads() -> Lineup:
    makers = {"raw": _load_gathered, "accel": _load_by_accel, "torch.distributed.checkpoint": _load_distributed}
    return Lineup.of(makers)


def _row(what: str, build: Callable[[], Lineup], target: float, against: str = "") -> Row:
    return Row(f"sharded checkpoint, {what}", build, target, world=2, against=against, least=5, most=15, warm_up=2)


ROWS = (
    _row("save of 400 MB, over gathering", _saves, 0.65),
    _row("save of 400 MB, durable and hashed", _saves, 1.0, "torch.distributed.checkpoint"),
    _row("load of 400 MB in a new process, over gathering", _loads, 0.65),
    _row("load of 400 MB in a new process, verified", _loads, 1.0, "torch.distributed.checkpoint"),
)
