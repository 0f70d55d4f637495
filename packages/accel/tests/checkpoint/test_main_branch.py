"""Saves under an `if` of the script that only the main process enters, as in scripts for Accelerate."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.checkpoint.main_branch import find_main_branch
from accel_checkpoint import read_manifest
from accel_comm import CollectiveMismatch
from accel_state import Topology
from accel_testing import MakePool
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, IterableDataset

Prepared = tuple[Accelerator, nn.Module, Any, Any]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(8.0).reshape(8, 1))


def prepared(data: Any = None, strategy: str = "auto") -> Prepared:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(accelerator.process_index)
    model = nn.Linear(1, 1)
    samples: Any = torch.arange(8.0).reshape(8, 1) if data is None else data
    loader = DataLoader[Any](samples)
    optimizer: Any
    model, optimizer, loader = accelerator.prepare(model, AdamW(model.parameters()), loader)
    return accelerator, model, optimizer, loader


def step(accelerator: Accelerator, model: nn.Module, optimizer: Any, batch: torch.Tensor) -> None:
    accelerator.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()


def trained(folder: str) -> tuple[list[str], list[float], list[float], list[float]]:
    """The warnings, the weights when a checkpoint was taken and when it is loaded, and the next batches."""
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("accel").addHandler(handler)
    accelerator, model, optimizer, loader = prepared()

    def keep_weights(models: list[nn.Module], weights: list[Any], place: str) -> None:
        if accelerator.is_main_process:
            Path(place, "of-a-hook").write_text(str(len(weights)))

    accelerator.register_save_state_pre_hook(keep_weights)
    for number, batch in enumerate(loader):
        step(accelerator, model, optimizer, batch)
        if number == 1 and (accelerator.is_main_process or accelerator.distributed_type == "DEEPSPEED"):
            accelerator.save_state(folder)
        if number == 1:
            saved = [weight.item() for weight in model.parameters()]
        if accelerator.is_main_process or number == 2:
            accelerator.save_state(f"{folder}-{number}")  # in turn by one and by all, of which one writes
    accelerator.load_state(folder)
    loaded = [weight.item() for weight in model.parameters()]
    left = [batch.item() for batch in loader]
    accelerator.end_training()
    return warnings, saved, loaded, left


def streamed(folder: str) -> int:
    accelerator, model, optimizer, loader = prepared(Stream())
    step(accelerator, model, optimizer, next(iter(loader)))
    if accelerator.is_main_process:
        accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    accelerator.load_state(folder)
    return len(list(loader))


def refused(folder: str, strategy: str) -> str:
    accelerator = prepared(strategy=strategy)[0]
    if accelerator.is_main_process:
        try:
            accelerator.save_state(folder)
        except CollectiveMismatch as error:
            return str(error)
    return ""


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")


@pytest.mark.usefixtures("door")
def test_the_main_process_saves_alone(world: MakePool, tmp_path: Path) -> None:
    """While the others train on; all load it, with one warning that names the `if`."""
    (warnings, saved, loaded, left), (others, *other, other_left) = world(2).run(trained, str(tmp_path / "c"))
    assert saved == loaded == other[0] == other[1]
    assert (left, other_left) == ([0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0, 7.0])  # the script skips by itself
    named = [text for text in warnings if "`if accelerator.is_main_process" in text or "`if number == 1 and" in text]
    assert len(named) == 2
    assert all(f"{Path(__file__).name}:" in text and "random numbers" in text for text in named)
    assert others == []
    assert read_manifest(tmp_path / "c").about["absent"] == ["the random numbers of other ranks"]
    assert (tmp_path / "c" / "of-a-hook").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c-0", "c-1", "c-2", "c-3"]


@pytest.mark.usefixtures("door")
def test_a_stream_that_ranks_share_begins_anew(world: MakePool, tmp_path: Path) -> None:
    assert world(2).run(streamed, str(tmp_path / "c")) == [4, 4]
    assert read_manifest(tmp_path / "c").about["absent"] == ["the random numbers of other ranks", "loader"]


@pytest.mark.usefixtures("door")
def test_a_model_that_is_divided_needs_all(world: MakePool, tmp_path: Path) -> None:
    error, _ = world(2).run(refused, str(tmp_path / "c"), "fsdp2")
    line = refused.__code__.co_firstlineno + 2
    assert f"`if accelerator.is_main_process:` at {__file__}:{line}, which only the main process enters" in error
    assert "has only a part of model" in error
    assert error.endswith("call save_state on all ranks: it writes once")


def test_without_the_door_the_if_is_named_at_once(world: MakePool, tmp_path: Path) -> None:
    error, _ = world(2).run(refused, str(tmp_path / "c"), "auto")
    assert "`if accelerator.is_main_process:` at" in error
    assert "every rank has to take part; call save_state on all ranks" in error


IN_BRANCHES = """
def save(): return find()
class state: is_main_process, is_local_main_process, process_index, other = True, True, 0, True
def within():
    if state.other and state.is_main_process:
        if state.other:
            return save()
def not_main():
    if not state.is_main_process:
        pass
    elif state.other:
        return save()
def turned():
    if not state.is_main_process or state.other: return save()
def after():
    if state.is_main_process: state.other = True
    return save()
def shared():
    if state.is_local_main_process: return save()
    else: return save()
def several():
    if state.process_index == 0 or state.other: return save()
def nested():
    if state.other and (state.is_main_process or state.other): return save()
def hidden():
    if not (state.is_main_process and state.process_index): return save()
def listed():
    if any([state.is_main_process, state.other]): return save()
def equal():
    if state.is_main_process == state.other: return save()
def alike():
    if "is_main_process": return save()
def chosen():
    if state.is_main_process if state.other else state.other: return save()
def tested():
    if (save_state := save()) and state.is_main_process: return save_state
def both(save_state=save):
    if state.is_main_process: return save_state()
    else: return save_state()
if state.is_main_process:
    def defined(): return save()
"""


def test_the_branch_is_that_around_the_call(tmp_path: Path) -> None:
    """In any function that leads to it, and not around its definition; none for a test that is turned round."""
    script = tmp_path / "script.py"
    script.write_text(IN_BRANCHES)
    os.utime(script, (0, 0))
    here = [Topology()]
    names: dict[str, Any] = {"find": lambda: find_main_branch(here[0]), "__name__": "script"}
    exec(compile(IN_BRANCHES, str(script), "exec"), names)

    def found(name: str) -> tuple[str, bool] | None:
        call: Callable[[], Any] = names[name]
        branch = call()
        return None if branch is None else (branch.site.replace(str(script), "script"), branch.alone)

    assert found("within") == ("`if state.other and state.is_main_process:` at script:5", True)
    assert found("shared") == ("`if state.is_local_main_process:` at script:19", False)
    assert found("several") == ("`if state.process_index == 0 or state.other:` at script:22", False)
    assert found("nested") is not None
    others = "not_main turned after defined hidden listed equal alike chosen tested both"
    assert [name for name in others.split() if found(name) is not None] == []
    here[0] = Topology(rank=0, world_size=2, local_rank=0, local_world_size=1)
    assert found("shared") is None, "each process is the main one of its machine"
    assert found("within") is not None


def test_a_file_that_has_changed_since_is_not_what_runs(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(IN_BRANCHES)
    os.utime(script, (time.time() + 60, time.time() + 60))
    names: dict[str, Any] = {"find": lambda: find_main_branch(Topology()), "__name__": "late"}
    exec(compile(IN_BRANCHES, str(script), "exec"), names)
    assert names["within"]() is None
