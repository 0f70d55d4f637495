"""T10, T17: what is saved under any layout is loaded under any other, every number the same."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, ParallelismConfig, ProjectConfiguration
from accel.checkpoint import loaded_checkpoint
from accel.checkpoint.contents import CheckpointContents
from accel.checkpoint.parts import own_part
from accel.checkpoint.save_job import SaveJob
from accel_checkpoint import CheckpointError, TensorFile, read_manifest, stored_tensors
from accel_checkpoint.hidden_folder import new_tag
from accel_checkpoint.inspect import list_lines
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.piece_index import PIECE_INDEX
from accel_checkpoint.pieces import Box, blocks_of, whole_box
from accel_testing import MakePool
from sharded_models import LAYOUTS, loaded, prepared, state
from suite.soak import Cases, in_soak
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def loaded_and_saved(ways: dict[str, Any], source: str, folder: str) -> None:
    accelerator, _, _ = prepared(ways)
    accelerator.load_state(source)
    accelerator.save_state(folder)


def saved(ways: dict[str, Any], folder: str, asynchronous: bool = False, steps: int = 2) -> dict[str, Any]:
    accelerator, model, optimizer = prepared(ways)
    for _ in range(steps):
        accelerator.backward(model(torch.arange(7)))
        optimizer.step()
        optimizer.zero_grad()
    numbers = state(accelerator, model, optimizer)  # before: what takes long here would let a write behind end first
    accelerator.save_state(folder, asynchronous=asynchronous)
    if asynchronous:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # the copy was taken before
        accelerator.wait_for_checkpoint()
    return numbers


def assert_equal(found: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    assert len(wanted) > 20
    for numbers in found:
        assert numbers.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(numbers[name], value), name


@pytest.mark.soak
@pytest.mark.parametrize("source", [*(name for name in LAYOUTS if name != "fsdp2 of four"), *in_soak("fsdp2 of four")])
def test_any_layout_loads_what_any_other_saved(world: MakePool, tmp_path: Path, source: str, cases: Cases) -> None:
    """T17: parameters and slots of the optimizer, bit for bit, on every rank."""
    processes, ways = LAYOUTS[source]
    wanted = world(processes).run(saved, ways, str(tmp_path / "saved"))
    assert_equal(wanted, wanted[0])
    place = list(LAYOUTS).index(source) + 3  # the first target has another layout, and most often another size
    for number in cases(1, len(LAYOUTS)):
        target_processes, target_ways = list(LAYOUTS.values())[(place + number) % len(LAYOUTS)]
        found = world(target_processes).run(loaded, target_ways, str(tmp_path / "saved"))
        assert_equal(found, wanted[0])


@pytest.mark.parametrize("layout", ["fsdp2", *in_soak("hsdp", "tp", "fsdp2 and tp")])
def test_a_sharded_save_behind_has_the_numbers_of_its_moment(world: MakePool, tmp_path: Path, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    wanted = world(processes).run(saved, ways, str(tmp_path / "saved"), True)
    assert_equal([loaded({}, str(tmp_path / "saved"))], wanted[0])
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("layout", ["fsdp2", "hsdp", *in_soak("fsdp2 of four")])
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


def opened_while_loading(ways: dict[str, Any], folder: str) -> tuple[set[str], dict[str, Any]]:
    """The parts that are opened, and the state."""
    opened = set[str]()

    def opening(path: Path) -> TensorFile:
        opened.add(path.name)
        return TensorFile(path)

    with pytest.MonkeyPatch.context() as patch:
        for module in (loaded_checkpoint, stored_tensors):
            patch.setattr(module, "TensorFile", opening)
        state = loaded(ways, folder)
    return opened, state


def without_index(folder: Path) -> None:
    """Makes a checkpoint as it was written before there was an index."""
    (folder / PIECE_INDEX).unlink()
    manifest = read_manifest(folder)
    files = {name: digest for name, digest in manifest.files.items() if name != PIECE_INDEX}
    (folder / MANIFEST).write_bytes(replace(manifest, files=files).as_bytes())


def test_a_rank_opens_its_own_part_and_without_an_index_all_parts(world: MakePool, tmp_path: Path) -> None:
    folder, ways = tmp_path / "saved", {"strategy": "fsdp2"}
    wanted = world(2).run(saved, ways, str(folder))
    parts = {rank: {f"{name}.rank{rank:05d}.safetensors" for name in ("model", "optimizer")} for rank in range(2)}
    # what all ranks hold whole is in the part of rank 0
    for expected in ([parts[0], parts[0] | parts[1]], [parts[0] | parts[1]] * 2):
        ranks = world(2).run(opened_while_loading, ways, str(folder))
        assert [{name for name in opened if ".rank" in name} for opened, _ in ranks] == expected
        assert_equal([numbers for _, numbers in ranks], wanted[0])
        if (folder / PIECE_INDEX).exists():
            without_index(folder)


def even() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(4)))


def save_even(ways: dict[str, Any], folder: str) -> None:
    accelerator = Accelerator(cpu=True, **ways)
    model: Any = even()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.ones(1, 128)).sum())
    optimizer.step()
    accelerator.save_state(folder)


def part_of_tensors(sizes: tuple[int, int]) -> tuple[list[tuple[Box, Tensor]], dict[str, tuple[Box, Tensor]]]:
    """The block that this rank has of a matrix divided by tensor parallelism, then by fully_shard."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=sizes[0], tp_size=sizes[1]))
    mesh: Any = accelerator.run.device_mesh
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 5))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter))
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp_shard"])
    blocks = {name: blocks_of(tensor)[0] for name, tensor in model.state_dict().items()}
    written = own_part(model.state_dict(), accelerator.run.mesh, accelerator.process_index)[0]
    return [blocks[name] for name in written], blocks


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2)])
def test_blocks_of_two_axes_are_where_they_were_in_the_whole(world: MakePool, sizes: tuple[int, int]) -> None:
    """fully_shard divides rows that tensor parallelism has divided before: the order is not that of the axes."""
    ranks = world(sizes[0] * sizes[1]).run(part_of_tensors, sizes)
    shapes = {"0.weight": (7, 5), "0.bias": (7,), "1.weight": (5, 7), "1.bias": (5,)}
    for _, blocks in ranks:
        for name, shape in shapes.items():
            whole_tensor = torch.arange(float(prod(shape))).view(shape)
            box, held = blocks[name]
            assert torch.equal(box.of(whole_tensor, whole_box(shape)), held), name
    assert sum(box.numel for written, _ in ranks for box, _ in written) == sum(map(prod, shapes.values()))


def test_the_command_shows_the_layout_of_a_checkpoint(world: MakePool, tmp_path: Path) -> None:
    """`accel checkpoint ls`."""
    world(1).run(saved, {}, str(tmp_path / "whole"))
    world(2).run(loaded_and_saved, {"strategy": "fsdp2"}, str(tmp_path / "whole"), str(tmp_path / "sharded"))
    lines = "\n".join(list_lines(tmp_path / "sharded"))
    assert "layout dp_shard 2" in lines
    assert "in 2 parts of" in lines
    assert [line.rpartition("  ")[2] for line in list_lines(tmp_path)][1:] == ["dp_shard 2", "one process"]


def test_a_part_that_the_main_process_lacks_is_an_error_that_says_why(tmp_path: Path) -> None:
    """Machines that share no disk."""
    job = SaveJob(tmp_path / "saved", new_tag(), True, CheckpointContents(), {}, [])
    job.begin()
    with pytest.raises(CheckpointError, match=r"rank 1 has written model.rank00001.safetensors, .* all machines share"):
        job.join([{}, {"model.rank00001.safetensors": (8, "0")}], 2, limit_s=0.0)
    job.abandon()
    assert list(tmp_path.iterdir()) == []


def save_on_each_node(folder: str) -> str:
    project = ProjectConfiguration(folder, save_on_each_node=True)
    accelerator = Accelerator(cpu=True, strategy="fsdp2", project_config=project)
    accelerator.prepare(even())
    with pytest.raises(CheckpointError) as error:
        accelerator.save_state(folder)
    return str(error.value)


def test_a_sharded_model_is_not_saved_on_each_machine(world: MakePool, tmp_path: Path) -> None:
    for error in world(2).run(save_on_each_node, str(tmp_path / "saved")):
        assert "no machine has all of it" in error
    assert list(tmp_path.iterdir()) == []
