"""`prepare`: kinds, order, placement, wrapping, errors."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, DistributedType, load_checkpoint_in_model
from accel.data_loader import DataLoaderShard
from accel.optimizer import AcceleratedOptimizer
from accel.scheduler import AcceleratedScheduler
from accel_state.devices.cpu import Cpu
from accel_testing import MakePool, RankFailure
from suite.toy_models import Mlp, RangeDataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def parts() -> tuple[nn.Module, SGD, DataLoader[Any], LambdaLR]:
    model = Mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    return model, optimizer, DataLoader(RangeDataset(8), batch_size=2), LambdaLR(optimizer, lambda step: 1.0)


def names(objects: Any) -> list[str]:
    return [type(one).__name__ for one in objects]


def any_order() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, scheduler = parts()
    ready = accelerator.prepare(scheduler, loader, optimizer, model)
    wrapped = "ForwardingContainer" if accelerator.num_processes > 1 else "Mlp"
    assert names(ready) == ["AcceleratedScheduler", "DataLoaderShard", "AcceleratedOptimizer", wrapped]
    assert isinstance(ready[1], DataLoader)
    assert isinstance(ready[2], torch.optim.Optimizer)


@pytest.mark.parametrize("size", [1, 2])
def test_objects_come_back_in_the_order_given(world: MakePool, size: int) -> None:
    """S30, S32, S38, S42: each kind in its wrapper; DDP around the model when there are two processes."""
    world(size).run(any_order)


def others_untouched() -> None:
    accelerator = Accelerator(cpu=True)
    thing = object()
    assert accelerator.prepare(None, 3, "x", thing) == (None, 3, "x", thing)
    assert accelerator.prepare(thing) is thing


def test_what_is_none_of_torch_classes_comes_back_as_it_is(world: MakePool) -> None:
    """S33."""
    world(1).run(others_untouched)


def several_of_each() -> None:
    accelerator = Accelerator(cpu=True)
    made = [parts() for _ in range(2)]
    ready = accelerator.prepare(made[0][0], made[1][0], made[0][1], made[1][1], made[0][2], made[1][2])
    # a prepared optimizer has it
    assert [one.optimizer for one in ready[2:4]] == [made[0][1], made[1][1]]  # type: ignore[attr-defined]
    assert [accelerator.unwrap_model(one) for one in ready[:2]] == [made[0][0], made[1][0]]


@pytest.mark.parametrize("size", [1, 2])
def test_several_models_optimizers_and_loaders_in_one_call(world: MakePool, size: int) -> None:
    """S34."""
    world(size).run(several_of_each)


def one_after_another() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, scheduler = parts()
    loader = accelerator.prepare(loader)
    model, optimizer = accelerator.prepare(model, optimizer)
    scheduler = accelerator.prepare(scheduler)
    assert accelerator.prepare(model) is model
    assert accelerator.prepare(loader, optimizer, scheduler) == (loader, optimizer, scheduler)
    assert isinstance(scheduler, AcceleratedScheduler)
    by_name = Accelerator(cpu=True)
    model, optimizer, loader, scheduler = parts()
    assert isinstance(by_name.prepare_data_loader(loader), DataLoaderShard)
    assert isinstance(by_name.prepare_optimizer(optimizer), AcceleratedOptimizer)
    assert isinstance(by_name.prepare_scheduler(scheduler), AcceleratedScheduler)
    assert by_name.prepare_model(model, evaluation_mode=True) is model


@pytest.mark.parametrize("size", [1, 2])
def test_objects_may_be_prepared_one_by_one_and_twice(world: MakePool, size: int) -> None:
    """S35, S36, S37: a loader alone; a second time gives the same object."""
    world(size).run(one_after_another)


def unwrapped() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = Mlp()
    original = model.forward
    ready = accelerator.prepare(model)
    assert isinstance(ready, DistributedDataParallel) == (accelerator.num_processes > 1)
    assert accelerator.unwrap_model(ready) is model
    assert model.forward != original
    assert accelerator.unwrap_model(ready, keep_fp32_wrapper=False).forward == original


@pytest.mark.parametrize("size", [1, 2])
def test_the_original_model_can_be_had_back(world: MakePool, size: int) -> None:
    """S39."""
    world(size).run(unwrapped)


class Recording(nn.Module):
    """Notes where it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.moves: list[Any] = []

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.moves += args
        return super().to(*args, **kwargs)


def placed_or_not(placement: bool) -> tuple[list[torch.device], torch.device | None]:
    accelerator = Accelerator(device_placement=placement, cpu=True)
    assert isinstance(accelerator.device, torch.device)
    model, loader = accelerator.prepare(Recording(), parts()[2])
    plain = accelerator.unwrap_model(model)
    return plain.moves, loader.device  # type: ignore[attr-defined] # a stand-in has it


@pytest.mark.parametrize("size", [1, 2])
def test_placement_can_be_switched_off(world: MakePool, size: int) -> None:
    """S16, S17, S18, S22: models and batches go to the device, and nothing moves without placement."""
    cpu = torch.device("cpu")
    assert world(size).run(placed_or_not, True) == [([cpu], cpu)] * size
    assert world(size).run(placed_or_not, False) == [([], None)] * size


def prepared_again() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Mlp())
    for another in (accelerator, Accelerator(cpu=True)):
        another.free_memory()
        assert another.prepare(model) is model
    assert isinstance(model, DistributedDataParallel) == (accelerator.num_processes > 1)
    assert not isinstance(accelerator.unwrap_model(model), DistributedDataParallel)


@pytest.mark.parametrize("size", [1, 2])
def test_a_model_is_wrapped_once_whoever_prepared_it(world: MakePool, size: int) -> None:
    world(size).run(prepared_again)


def compiled(folder: Path) -> list[str]:
    accelerator = Accelerator(cpu=True)
    model = Mlp()
    shortcut: Any = torch.compile(model, backend="eager")
    ready = accelerator.prepare(shortcut)
    ready(torch.ones(2, 8))
    assert accelerator.unwrap_model(ready, keep_torch_compile=False) is model
    assert accelerator.unwrap_model(ready)._orig_mod is model
    accelerator.save_model(ready, folder)
    accelerator.wait_for_everyone()
    load_checkpoint_in_model(model, folder, strict=True)
    return sorted(accelerator.get_state_dict(ready))


@pytest.mark.parametrize("size", [1, 2])
def test_a_compiled_model_keeps_the_names_of_its_weights(world: MakePool, size: int, tmp_path: Path) -> None:
    """S39, S88."""
    assert world(size).run(compiled, tmp_path) == [sorted(Mlp().state_dict())] * size


def apart() -> None:
    accelerator = Accelerator(cpu=True)
    first, second = Mlp(), Mlp()
    first_steps, second_steps = SGD(first.parameters(), lr=0.1), SGD(second.parameters(), lr=0.1)
    accelerator.prepare(first, first_steps)
    accelerator.prepare(second_steps)
    accelerator.prepare(second, SGD([nn.Parameter(torch.zeros(4))], lr=0.1))


def test_twin_models_may_be_prepared_apart_from_their_optimizers(world: MakePool) -> None:
    """S34, S35."""
    world(1).run(apart)


def on_the_device(kind: str) -> None:
    accelerator = Accelerator(cpu=kind == "cpu")
    model = Mlp()
    optimizer = AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RangeDataset(4)))
    assert accelerator.device.type == kind
    assert {parameter.device.type for parameter in model.parameters()} == {kind}
    assert {entry["exp_avg"].device.type for entry in optimizer.state.values()} == {kind}
    assert {batch.device.type for batch in loader} == {kind}


def test_model_state_and_batches_are_on_the_device(world: MakePool, device: torch.device) -> None:
    """S17, S41, S53, S119: on the CPU by default, on a GPU with --device=cuda."""
    world(1).run(on_the_device, device.type)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embed(ids))
        return out


def move_makes_new_parameters() -> None:
    # What moving to some devices does: parameters are replaced, not filled anew. Here a meta model is given memory.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        accelerator = Accelerator(cpu=True)
        model = Tied()
        held = model.embed.weight
        optimizer = SGD(model.parameters(), lr=0.1)
        model, prepared = accelerator.prepare(model, optimizer)
        assert model.embed.weight is not held, "nothing was replaced: the test has lost its point"
        assert model.head.weight is model.embed.weight
        assert prepared.param_groups[0]["params"] == [model.embed.weight]
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_ties_and_optimizers_follow_parameters_that_a_move_replaces(world: MakePool) -> None:
    """S118, S119: what XLA needs."""
    world(1).run(move_makes_new_parameters)


def stale_optimizer() -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        accelerator = Accelerator(device_placement=False, cpu=True)
        model = Mlp().to("meta")
        optimizer = SGD(model.parameters(), lr=0.1)
        model.to_empty(device=accelerator.device)
        accelerator.prepare(model, optimizer)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_an_optimizer_made_before_the_move_is_refused(world: MakePool) -> None:
    """S21."""
    with pytest.raises(RankFailure, match=r"Create the optimizer after\s+model\.to\(accelerator\.device\)"):
        world(1).run(stale_optimizer)


def orphan_scheduler() -> None:
    Accelerator(cpu=True).prepare(parts()[3])


def nothing() -> None:
    Accelerator(cpu=True).prepare()


def wrong_placements() -> None:
    Accelerator(cpu=True).prepare(*parts(), device_placement=[True])


def not_a_model() -> None:
    Accelerator(cpu=True).prepare_model("model")  # type: ignore[type-var] # the mistake


def does_not_divide() -> None:
    Accelerator(cpu=True, split_batches=True).prepare(DataLoader(RangeDataset(8), batch_size=3))


def rank_outside() -> None:
    os.environ["RANK"] = "5"
    Accelerator(cpu=True)


@pytest.mark.parametrize(
    ("function", "size", "text"),
    [
        (orphan_scheduler, 1, r"LambdaLR belongs to an optimizer that is not prepared; pass the optimizer to"),
        (nothing, 1, r"prepare\(\) needs at least one object"),
        (wrong_placements, 1, r"device_placement has 1 entries for 4 objects"),
        (not_a_model, 1, r"only a torch.nn.Module can be prepared as a model, found a str"),
        (does_not_divide, 2, r"batch_size=3 is not a\s+round multiple of 2"),
        (rank_outside, 1, r"rank 5 of a world of 1: expected 0 to 0"),
    ],
)
def test_what_cannot_be_prepared_is_refused_in_words(world: MakePool, function: Any, size: int, text: str) -> None:
    with pytest.raises(RankFailure, match=text):
        world(size).run(function)


def needs_ddp() -> None:
    Accelerator(cpu=True, strategy="single")


def chosen() -> None:
    accelerator = Accelerator(cpu=True, strategy="ddp")
    assert isinstance(accelerator.prepare(Mlp()), DistributedDataParallel)


def test_a_strategy_can_be_chosen_and_is_checked(world: MakePool) -> None:
    world(2).run(chosen)
    with pytest.raises(RankFailure, match=r"strategy single with precision no on cpu: it is for one process"):
        world(2).run(needs_ddp)


def detected() -> tuple[str, int, int, int]:
    accelerator = Accelerator(cpu=True)
    assert accelerator.distributed_type == (
        DistributedType.MULTI_CPU if accelerator.num_processes > 1 else DistributedType.NO
    )
    assert torch.distributed.is_initialized() == (accelerator.num_processes > 1)
    return (
        str(accelerator.device),
        accelerator.num_processes,
        accelerator.process_index,
        accelerator.local_process_index,
    )


def test_constructing_initialises_everything(world: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S8, S25: the environment is detected, and a process group is open when there are two processes."""
    assert world(2).run(detected) == [("cpu", 2, 0, 0), ("cpu", 2, 1, 1)]
    assert world(1, join=False).run(detected) == [("cpu", 1, 0, 0)]


def nothing_prepared() -> None:
    accelerator = Accelerator(cpu=True)
    model = Mlp()
    for _ in range(2):
        accelerator.backward(model(torch.ones(2, 8)).sum())


def no_loader(prepared: bool) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Mlp())
    loader: Any = DataLoader(TensorDataset(torch.ones(8, 8)), batch_size=2)
    if prepared:
        loader = accelerator.prepare(loader)
    for (batch,) in loader:
        accelerator.backward(model(batch).sum())


def test_data_that_nobody_divides_are_pointed_out(world: MakePool) -> None:
    """Each process would train on all data, without a word."""
    for size, prepared, times in ((1, False, 0), (2, False, 1), (2, True, 0)):
        running = world(size)
        running.run(no_loader, prepared)
        told = [running.output(rank).count("before any loader was prepared") for rank in range(size)]
        assert told == [times, 0][:size]


def renormalised() -> str:
    frozen, trained = (nn.Sequential(nn.Embedding(4, 2, max_norm=1.0), nn.Linear(2, 2)) for _ in range(2))
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(frozen.requires_grad_(False))
    with pytest.raises(ValueError, match="max_norm") as error:
        accelerator.prepare(trained)
    return str(error.value)


def test_rows_that_each_process_would_renormalise_alone_are_refused(world: MakePool) -> None:
    for told in world(2).run(renormalised):
        assert "0 of Sequential with max_norm: its forward changes the rows that it looks up" in told


def test_a_model_that_was_not_prepared_is_pointed_out(world: MakePool) -> None:
    """Each process would train a model of its own, without a word."""
    for size, times in ((1, 0), (2, 1)):
        running = world(size)
        running.run(nothing_prepared)
        assert [running.output(rank).count("before any model was prepared") for rank in range(size)] == [times] * size


def steps_told_to_the_device() -> list[bool]:
    told: list[bool] = []
    Cpu.step_boundary = property(lambda self: lambda: told.append(True))  # type: ignore[assignment] # a stand-in
    model = Mlp()
    optimizer = Accelerator(cpu=True).prepare(SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    return told


def test_the_device_is_told_of_each_step(world: MakePool) -> None:
    """S4: what XLA needs to run the step."""
    assert world(1).run(steps_told_to_the_device) == [[True]]
