"""Evaluation, collectives, printing, saving: what processes do together and apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, AcceleratorState
from accel.utils import load_checkpoint_in_model, set_seed, synchronize_rng_states
from accel_testing import MakePool
from suite.toy_models import Mlp, RangeDataset
from torch.optim import SGD
from torch.utils.data import DataLoader


def evaluated(samples: int, batch: int) -> tuple[list[int], list[int], list[dict[str, int]]]:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(RangeDataset(samples), batch_size=batch))
    pairs, gathered, objects = [], [], []
    for ids in loader:
        guesses, targets = accelerator.gather_for_metrics((ids, -ids))
        assert type(guesses) is torch.Tensor
        pairs += (guesses + targets).tolist()
        gathered += accelerator.gather(ids).cpu().numpy().tolist()
        objects += accelerator.gather_for_metrics([{"id": int(one)} for one in ids])
    assert pairs == [0] * len(pairs)
    assert len(loader.dataset) == samples  # type: ignore[arg-type] # it has a length
    return pairs, gathered[: len(loader.dataset)], objects  # type: ignore[arg-type] # it has a length


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("samples", "batch"), [(10, 2), (9, 4), (1, 3), (12, 2)])
def test_evaluation_gives_back_the_dataset(world: MakePool, size: int, samples: int, batch: int) -> None:
    """S57, S58, S77, S78, S79, S81: gather_for_metrics is exact; gather and a cut at len(dataset) is too."""
    for pairs, gathered, objects in world(size).run(evaluated, samples, batch):
        assert len(pairs) == samples
        assert gathered == list(range(samples))
        assert objects == [{"id": one} for one in range(samples)]


def by_hand() -> list[int]:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Mlp())
    seen = []
    for ids in DataLoader(RangeDataset(6), batch_size=2):
        with torch.no_grad():
            model(torch.ones(len(ids), 8).to(accelerator.device))
        seen += ids.to(accelerator.device).tolist()
    if accelerator.is_main_process():
        seen.append(100)
    return seen


def test_evaluation_works_with_a_plain_loader_and_on_one_process_only(world: MakePool) -> None:
    """S20, S75, S76: plain loaders see everything on each rank; a block for the main process runs once."""
    assert world(2).run(by_hand) == [[0, 1, 2, 3, 4, 5, 100], [0, 1, 2, 3, 4, 5]]


def ragged() -> tuple[list[int], list[int]]:
    accelerator = Accelerator(cpu=True)
    rows = torch.ones(2, 3 + 2 * accelerator.process_index)
    padded = accelerator.pad_across_processes(rows, dim=1)
    return list(padded.shape), list(accelerator.gather(padded).shape)


def test_ragged_results_are_padded_then_gathered(world: MakePool) -> None:
    """S80."""
    assert world(2).run(ragged) == [([2, 5], [4, 5])] * 2


def views() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    for state in (AcceleratorState(), accelerator.state):
        assert state.process_index == accelerator.process_index
        assert state.num_processes == accelerator.num_processes
        assert state.mixed_precision == "bf16"
    assert bool(accelerator.is_main_process) == bool(accelerator.is_main_process()) == (state.process_index == 0)
    accelerator.print("printed")
    accelerator.wait_for_everyone()


def test_every_view_agrees_and_one_process_prints(world: MakePool) -> None:
    """S6, S83, S85, S86, S120."""
    running = world(2)
    running.run(views)
    assert [running.output(rank).count("printed") for rank in range(2)] == [1, 0]


def random_numbers() -> tuple[list[float], list[float]]:
    accelerator = Accelerator(cpu=True, rng_types=["torch", "generator"])
    set_seed(0, device_specific=True)
    apart = torch.rand(2).tolist()
    loader = accelerator.prepare(DataLoader(RangeDataset(4)))
    next(iter(loader))
    together = torch.rand(2).tolist()
    generator = torch.Generator().manual_seed(accelerator.process_index)
    synchronize_rng_states(["torch", "generator"], generator)
    return apart, together + torch.rand(1, generator=generator).tolist()


def test_random_numbers_are_apart_until_they_are_synchronised(world: MakePool) -> None:
    """S29, S122, S125: rng_types of the Accelerator, and the public function."""
    (apart_0, together_0), (apart_1, together_1) = world(2).run(random_numbers)
    assert apart_0 != apart_1
    assert together_0 == together_1


def saved(folder: Path, shards: str, safe: bool) -> tuple[str | None, bool]:
    accelerator = Accelerator(cpu=True)
    model = Mlp(seed=accelerator.process_index)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.ones(2, 8)).sum())
    optimizer.step()
    path = accelerator.save_model(model, folder, max_shard_size=shards, safe_serialization=safe)
    accelerator.wait_for_everyone()
    again = Mlp(seed=9)
    load_checkpoint_in_model(again, folder, device_map={"": accelerator.device}, strict=True)
    probe = torch.ones(1, 8)
    same = bool(torch.equal(again(probe), model(probe)))
    accelerator.unwrap_model(model).load_state_dict({k: v * 0 for k, v in again.state_dict().items()})
    assert not model(probe).any(), "loading into the unwrapped model reaches the wrapped one"
    return (None if path is None else path.name), same


@pytest.mark.parametrize(
    ("shards", "safe", "name"),
    [
        ("1GB", True, "model.safetensors"),
        ("500", True, "model.safetensors.index.json"),
        ("1GB", False, "pytorch_model.bin"),
        ("500", False, "pytorch_model.bin.index.json"),
    ],
)
def test_a_saved_model_loads_into_the_plain_one(
    world: MakePool, tmp_path: Path, shards: str, safe: bool, name: str
) -> None:
    """S88, S89, S90, S91, S95: every format, from two processes into an unwrapped model on its device."""
    assert world(2).run(saved, tmp_path, shards, safe) == [(name, True), (None, True)]


def freed() -> tuple[Any, ...]:
    accelerator = Accelerator(cpu=True)
    model, loader = accelerator.prepare(Mlp(), DataLoader(RangeDataset(4)))
    model, loader = accelerator.free_memory(model, loader)  # type: ignore[assignment] # it returns None for each
    other = accelerator.prepare(Mlp())
    assert accelerator.prepare(other) is other
    return model, loader


def test_freed_objects_are_forgotten(world: MakePool) -> None:
    assert world(1).run(freed) == [(None, None)]


def saved_object(folder: Path) -> list[str]:
    accelerator = Accelerator(cpu=True)
    accelerator.save({"rank": accelerator.process_index}, folder / f"{accelerator.process_index}.pt")
    accelerator.wait_for_everyone()
    return sorted(path.name for path in folder.iterdir())


def test_an_object_is_saved_once(world: MakePool, tmp_path: Path) -> None:
    """S12: what scripts pass as save_function."""
    assert world(2).run(saved_object, tmp_path) == [["0.pt"]] * 2
