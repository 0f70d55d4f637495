"""Checkpoints of sharded models that Accelerate wrote: gone on from under any layout, and nothing of them is run."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import CheckpointError
from accel_testing import MakePool
from registered_objects import Evil
from sharded_models import LAYOUTS, loaded, prepared, state
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed


def save_as_accelerate(folder: str, full: bool) -> dict[str, Any]:
    """The layout of Accelerate 1.15 for FSDP2, by torch's own functions; all numbers, whole."""
    accelerator, model, optimizer = prepared({"strategy": "fsdp2"})
    for _ in range(2):
        accelerator.backward(model(torch.arange(7)))
        optimizer.step()
        optimizer.zero_grad()
    place = Path(folder)
    options = StateDictOptions(full_state_dict=full, cpu_offload=full)
    slots = get_optimizer_state_dict(model, optimizer.optimizer, options=options)
    weights = accelerator.get_state_dict(model) if full else model.state_dict()
    if accelerator.is_main_process:
        place.mkdir()
        torch.save({"random_state": 1}, place / "random_states_0.pkl")
    accelerator.wait_for_everyone()
    if not full:
        save_distributed({"model": weights}, storage_writer=FileSystemWriter(place / "pytorch_model_fsdp_0"))
        save_distributed({"optimizer": slots}, storage_writer=FileSystemWriter(place / "optimizer_0"))
    elif accelerator.is_main_process:
        torch.save(weights, place / "pytorch_model_fsdp.bin")
        torch.save(slots, place / "optimizer.bin")
    return state(accelerator, model, optimizer)


def save_as_ddp(folder: str) -> dict[str, Any]:
    """What Accelerate writes of a model that is not sharded: parameters by numbers."""
    accelerator, model, optimizer = prepared({})
    accelerator.backward(model(torch.arange(7)))
    optimizer.step()
    place = Path(folder)
    place.mkdir()
    torch.save({"random_state": 1}, place / "random_states_0.pkl")
    torch.save(model.state_dict(), place / "pytorch_model.bin")
    torch.save(optimizer.optimizer.state_dict(), place / "optimizer.bin")
    return state(accelerator, model, optimizer)


@pytest.mark.parametrize("form", ["FULL_STATE_DICT", "SHARDED_STATE_DICT", "not sharded"])
def test_every_layout_goes_on_from_it(world: MakePool, tmp_path: Path, form: str) -> None:
    """Parameters and slots of the optimizer, bit for bit."""
    folder = str(tmp_path / "theirs")
    if form == "not sharded":
        (wanted,) = world(1).run(save_as_ddp, folder)
    else:
        wanted = world(2).run(save_as_accelerate, folder, form == "FULL_STATE_DICT")[0]
    for layout in ("one process", "ddp", "fsdp2", "hsdp"):
        processes, ways = LAYOUTS[layout]
        for found in world(processes).run(loaded, ways, folder):
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[name], value) for name, value in wanted.items())


def evil_metadata(folder: Path, marker: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": Evil(marker)}))


def evil_tensor(folder: Path, marker: Path) -> None:
    content = io.BytesIO()
    torch.save(Evil(marker), content)
    for file in folder.glob("*.distcp"):
        file.write_bytes(content.getvalue().ljust(file.stat().st_size, b"\0"))


def outside(folder: Path, marker: Path) -> None:
    content = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(content.replace(b"__0_0.distcp", b"../_0.distcp"))


def cut(folder: Path, marker: Path) -> None:
    (folder / ".metadata").write_bytes((folder / ".metadata").read_bytes()[:400])


def refused(folder: str) -> str:
    accelerator, model, optimizer = prepared({"strategy": "fsdp2"})
    before = state(accelerator, model, optimizer)
    with pytest.raises(CheckpointError) as error:
        accelerator.load_state(folder)
    after = state(accelerator, model, optimizer)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    return str(error.value)


@pytest.mark.parametrize("damage", [evil_metadata, evil_tensor, outside, cut])
def test_a_damaged_or_hostile_folder_is_refused_and_no_code_is_run(
    world: MakePool, tmp_path: Path, damage: Any
) -> None:
    """T12: the metadata of the format is a pickle."""
    folder = tmp_path / "theirs"
    world(2).run(save_as_accelerate, str(folder), False)
    damage(folder / "optimizer_0", tmp_path / "executed")
    for error in world(2).run(refused, str(folder)):
        assert "optimizer_0" in error
        assert "nothing was changed" in error
    assert not (tmp_path / "executed").exists()
