"""A load that something refuses, of a model, of memory or of a disk, leaves all as it was, on every process."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from accel import Accelerator
from accel.checkpoint import save_job, verification
from accel.checkpoint.apply import cannot_refuse
from accel.checkpoint.loaded_checkpoint import LoadedCheckpoint
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError
from accel_parallel.sharded.loaded_state import divide_loaded
from accel_state import release
from accel_testing import MakePool
from registered_objects import Box
from torch import nn


class Refusing(nn.Linear):
    """A model whose own code takes no weights."""

    def _load_from_state_dict(self, *arguments: Any) -> None:
        raise RuntimeError("not these")


class WithExtra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError("there is none")


def test_a_model_that_refuses_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2), nn.Linear(2, 2))
    accelerator.save_state(tmp_path / "state")
    release()
    accelerator = Accelerator(cpu=True)
    models = [nn.Linear(2, 2), Refusing(2, 2)]
    before = [one.weight.clone() for one in models]
    accelerator.prepare(*models)
    with pytest.raises(CheckpointError, match="everything has its old state:\n  model_1: RuntimeError: not these"):
        accelerator.load_state(tmp_path / "state")
    assert all(torch.equal(one.weight, weight) for one, weight in zip(models, before, strict=True))


@pytest.mark.parametrize(("there", "here"), [(WithExtra, nn.Linear), (nn.Linear, WithExtra)])
def test_extra_state_of_one_side_is_named_before_anything_changes(
    there: type[nn.Linear], here: type[nn.Linear], tmp_path: Path
) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(there(2, 2))
    accelerator.save_state(tmp_path / "state")
    release()
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(here(2, 2))
    with pytest.raises(CheckpointError, match=r"nothing was changed:\n  model: _extra_state is"):
        accelerator.load_state(tmp_path / "state")


def test_only_models_with_code_of_torch_alone_are_sure_to_take_weights() -> None:
    """Of the others a copy is kept until every process has loaded them."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.MultiheadAttention(2, 1), nn.LSTM(2, 2))
    assert cannot_refuse(plain)
    hooked: Any = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_load_state_dict_post_hook(lambda module, keys: None)
    pre_hooked: Any = nn.Sequential(nn.Linear(2, 2))
    pre_hooked[0].register_load_state_dict_pre_hook(lambda *arguments: None)
    for one in (hooked, pre_hooked, nn.Sequential(Refusing(2, 2)), nn.Sequential(WithExtra(2, 2))):
        assert not cannot_refuse(one)


def test_a_sharded_model_is_sure_to_take_weights() -> None:
    """No second copy of its parts is in memory while it loads."""
    model = nn.Sequential(nn.Linear(2, 2))
    divide_loaded(model)
    assert model[0]._load_state_dict_pre_hooks
    assert cannot_refuse(model)


class Versioned(nn.Linear):
    """A model that saves a number beside its weights, in the old way."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "version"] = 3

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        self.version = state.pop(prefix + "version")
        super()._load_from_state_dict(state, prefix, *others)


def test_what_a_model_saves_beside_tensors_comes_back(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    made = accelerator.prepare(Versioned(2, 2))
    accelerator.save_state(tmp_path / "state")
    accelerator.load_state(tmp_path / "state")
    assert made.version == 3


def test_a_buffer_that_overlaps_itself_is_refused_before_any_loss(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True)
    made = nn.Linear(2, 2)
    made.register_buffer("mask", torch.ones(1).expand(4))
    assert not cannot_refuse(made)
    box = Box(1)
    accelerator.prepare(made)
    accelerator.register_for_checkpointing(box=box)
    accelerator.save_state(tmp_path / "state")
    box.value = 2
    with pytest.raises(CheckpointError, match="everything has its old state"):
        accelerator.load_state(tmp_path / "state")
    assert box.value == 2


def test_a_checkpoint_that_is_replaced_while_it_is_loaded_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = Accelerator(cpu=True)
    made = accelerator.prepare(nn.Linear(2, 2))
    accelerator.save_state(tmp_path / "state")
    load = LoadedCheckpoint.load_model

    def replaced(self: LoadedCheckpoint, key: str, model: nn.Module) -> None:
        load(self, key, model)
        with torch.no_grad():
            made.weight.add_(1)
        accelerator.save_state(tmp_path / "state")

    monkeypatch.setattr(LoadedCheckpoint, "load_model", replaced)
    with pytest.raises(CheckpointError, match="another job has replaced it"):
        accelerator.load_state(tmp_path / "state")


def test_a_generator_of_another_kind_in_the_place_of_numpys_comes_back(tmp_path: Path) -> None:
    drawing: Any = numpy.random
    before = drawing.get_bit_generator()
    accelerator = Accelerator(cpu=True)
    try:
        drawing.set_bit_generator(numpy.random.PCG64(5))
        accelerator.save_state(tmp_path / "state")
        drawn = numpy.random.random(3).tolist()
        accelerator.load_state(tmp_path / "state")
        assert numpy.random.random(3).tolist() == drawn
    finally:
        drawing.set_bit_generator(before)


def full(folder: str) -> str:
    accelerator = Accelerator(cpu=True)
    accelerator.save_state(folder)
    if accelerator.process_index == 1:
        module: Any = verification
        module.verify = _no_memory
    with pytest.raises(CheckpointError) as caught:
        accelerator.load_state(folder)
    return str(caught.value)


def _no_memory(*arguments: Any, **settings: Any) -> None:
    raise MemoryError("64 GB")


def test_a_rank_that_has_no_memory_for_a_load_is_named_on_all(world: MakePool, tmp_path: Path) -> None:
    for said in world(2).run(full, str(tmp_path / "state")):
        assert "rank 1" in said
        assert "MemoryError: 64 GB" in said


def unreadable(folder: str) -> str:
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    if accelerator.process_index == 0:
        module: Any = save_job
        module.next_number = _no_permission
    with pytest.raises(CheckpointError) as caught:
        accelerator.save_state()
    return str(caught.value)


def _no_permission(folder: Path) -> int:
    raise PermissionError(13, "Permission denied", str(folder))


def test_a_folder_that_the_main_process_cannot_read_is_told_to_all(world: MakePool, tmp_path: Path) -> None:
    assert all("Permission denied" in said for said in world(2).run(unreadable, str(tmp_path)))
