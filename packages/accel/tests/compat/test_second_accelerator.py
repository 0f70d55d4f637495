"""What one Accelerator prepared, given to a second one; and Accelerators that are pickled or copied."""

import copy
import os
import pickle
from typing import Any

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel.data_loader import DataLoaderShard
from accel.state import AcceleratorState
from accel_testing import MakePool
from suite.toy_models import Mlp, RangeDataset
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader


def prepared(accelerator: Accelerator) -> tuple[Any, ...]:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    loader = DataLoader(RangeDataset(8), batch_size=2)
    return accelerator.prepare(model, optimizer, loader, StepLR(optimizer, 1, gamma=0.5))


def trains(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, scheduler: Any) -> None:
    """Two micro-batches to a step: the window is that of this Accelerator, and the loader's end is its end."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    steps = ends = 0
    for _ in loader:
        assert accelerator.gradient_state.active_dataloader is loader
        ends += accelerator.gradient_state.end_of_dataloader
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 8)).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
    assert (steps, ends) == (len(loader) // 2, 1)
    assert scheduler.get_last_lr() == [0.1 * 0.5 ** (steps * accelerator.num_processes)]
    assert any(not torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True))


def second_trains() -> None:
    given = prepared(Accelerator(cpu=True))
    second = Accelerator(cpu=True, gradient_accumulation_steps=2)
    again = second.prepare(*given)
    assert again[0] is given[0], "the container is the same: gradients would travel twice in two"
    assert again[1].optimizer is given[1].optimizer
    assert not isinstance(again[1].optimizer, type(again[1]))
    assert len(again[2]) == len(given[2]), "it is not sharded twice"
    assert second.prepare(*again) == again
    trains(second, *again)


@pytest.mark.parametrize("size", [1, 2])
def test_what_was_prepared_is_prepared_for_a_second_accelerator(world: MakePool, size: int) -> None:
    """S173: as `find_executable_batch_size` has it; nothing is said."""
    world(size).run(second_trains)


def copies_train() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir="here")
    objects = prepared(accelerator)
    for twin, copied in (copy.deepcopy((accelerator, objects)), pickle.loads(pickle.dumps((accelerator, objects)))):
        assert twin._models == [copied[0]]
        assert twin._dataloaders == [copied[2]]
        assert [twin._optimizers[0] is copied[1], twin._schedulers[0] is copied[3]] == [True, True]
        assert twin.run is accelerator.run
        assert twin.gradient_state is not accelerator.gradient_state
        assert (twin.gradient_accumulation_steps, twin.project_dir) == (2, os.path.abspath("here"))
        trains(twin, *copied)
        for new, old in zip(copied[0].parameters(), objects[0].parameters(), strict=True):
            assert new.data_ptr() != old.data_ptr()
    trains(accelerator, *objects)


@pytest.mark.parametrize("size", [1, 2])
def test_an_accelerator_can_be_copied_and_pickled(world: MakePool, size: int) -> None:
    """S173: with what it has prepared, which goes on in the window of the copy."""
    world(size).run(copies_train)


# torch's schedulers look for a mark on their optimizer, which a copy of it lacks
@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")
def test_a_copy_in_fp16_has_a_scale_of_its_own() -> None:
    """S173."""
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp16",
        gradient_accumulation_steps=2,
        kwargs_handlers=[GradScalerKwargs(init_scale=8.0)],
    )
    objects = prepared(accelerator)
    twin, copied = copy.deepcopy((accelerator, objects))
    assert twin.scaler is not None
    assert twin.scaler is copied[1].scaler
    assert twin.scaler is not accelerator.scaler
    trains(twin, *copied)


def test_a_state_can_be_copied_and_pickled() -> None:
    """S173."""
    state = AcceleratorState(cpu=True)
    assert copy.deepcopy(state).run is pickle.loads(pickle.dumps(state)).run is state.run


def test_a_prepared_loader_can_be_made_by_itself() -> None:
    """S171."""
    numbers: Any = range(8)
    loader: DataLoaderShard[Any] = DataLoaderShard(numbers, batch_size=4)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (len(loader), loader.iteration, loader.total_batch_size, loader.total_dataset_length) == (2, 1, 4, 8)
