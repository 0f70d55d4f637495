"""T10, T17: what is saved under any layout is loaded under any other, every number the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_checkpoint import read_manifest
from accel_testing import MakePool
from sharded_models import LAYOUTS, prepared, state
from torch import nn


def saved(ways: dict[str, Any], folder: str, asynchronous: bool = False) -> dict[str, Any]:
    accelerator, model, optimizer = prepared(ways)
    for _ in range(2):
        accelerator.backward(model(torch.arange(7)))
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder, asynchronous=asynchronous)
    numbers = state(accelerator, model, optimizer)
    if asynchronous:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # the copy was taken before
        accelerator.wait_for_checkpoint()
    return numbers


def loaded(ways: dict[str, Any], folder: str) -> dict[str, Any]:
    accelerator, model, optimizer = prepared(ways)
    accelerator.load_state(folder)
    return state(accelerator, model, optimizer)


def assert_equal(found: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    assert len(wanted) > 20
    for numbers in found:
        assert numbers.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(numbers[name], value), name


@pytest.mark.parametrize("source", LAYOUTS)
def test_any_layout_loads_what_any_other_saved(world: MakePool, tmp_path: Path, source: str) -> None:
    """T17: parameters and slots of the optimizer, bit for bit, on every rank."""
    processes, ways = LAYOUTS[source]
    wanted = world(processes).run(saved, ways, str(tmp_path / "saved"))
    assert_equal(wanted, wanted[0])
    for target_processes, target_ways in LAYOUTS.values():
        found = world(target_processes).run(loaded, target_ways, str(tmp_path / "saved"))
        assert_equal(found, wanted[0])


@pytest.mark.parametrize("layout", ["fsdp2", "hsdp"])
def test_a_sharded_save_behind_has_the_numbers_of_its_moment(world: MakePool, tmp_path: Path, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    wanted = world(processes).run(saved, ways, str(tmp_path / "saved"), True)
    assert_equal([loaded({}, str(tmp_path / "saved"))], wanted[0])
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("layout", ["fsdp2", "hsdp", "fsdp2 of four"])
def test_each_number_is_written_once_and_ranks_write_equally_much(world: MakePool, tmp_path: Path, layout: str) -> None:
    """A4: bytes split within 5 %, copies by turns."""
    processes, ways = LAYOUTS[layout]
    world(processes).run(save_even, ways, str(tmp_path / "saved"))
    manifest = read_manifest(tmp_path / "saved")
    sizes = [0] * processes
    for names in manifest.parts.values():
        for rank, name in enumerate(names):
            sizes[rank] += manifest.files[name].size
    whole_bytes = 3 * 4 * sum(parameter.numel() for parameter in even().parameters())
    assert sum(sizes) < 1.05 * whole_bytes
    assert max(sizes) <= 1.05 * min(sizes)


def even() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))


def save_even(ways: dict[str, Any], folder: str) -> None:
    accelerator = Accelerator(cpu=True, **ways)
    model: Any = even()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.ones(1, 128)).sum())
    optimizer.step()
    accelerator.save_state(folder)
