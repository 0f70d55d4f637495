"""Ranks of a sharded model that use different parameters: refused, or right."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, cast

import pytest
import torch
from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_parallel.sharded.unused_parameter_check import UnlikeParameters
from accel_testing import MakePool
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class Routed(nn.Module):
    """Each row is computed by one of two experts, times a number that only rows of the first have."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4, dtype=torch.float64) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, rows: Tensor, expert: int) -> Tensor:
        outputs: Tensor = self.experts[expert](rows)
        return outputs * self.scale if expert == 0 else outputs


ROWS = torch.linspace(-1, 1, 8, dtype=torch.float64).view(2, 4)


def trained(find_unused_parameters: bool, unfreeze: bool, again: bool = False) -> dict[str, Tensor]:
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="no_wrap", find_unused_parameters=find_unused_parameters)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    torch.manual_seed(0)
    model = Routed()
    model.scale.requires_grad_(not unfreeze)
    if again:
        accelerator.prepare(model)
        accelerator.free_memory()
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.scale.requires_grad_(True)
    for _ in range(3):
        for expert in range(2) if accelerator.num_processes == 1 else [accelerator.process_index]:
            loss = model(ROWS[expert : expert + 1], expert).square().sum() / (2 / accelerator.num_processes)
            accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state: dict[str, Any] = model.state_dict()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


@pytest.mark.parametrize(("unfreeze", "again"), [(False, False), (True, False), (False, True)])
def test_ranks_that_use_different_experts_train_as_one_process(world: MakePool, unfreeze: bool, again: bool) -> None:
    """The number is whole on both ranks, used by one of them, and trained from the start or unfrozen later."""
    wanted = trained(False, unfreeze)
    for found in world(2).run(trained, True, unfreeze, again):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def refused(again: bool) -> str:
    with pytest.raises(UnlikeParameters) as error:
        trained(False, False, again)
    return str(error.value)


@pytest.mark.parametrize("again", [False, True])
def test_different_experts_are_refused_on_all_ranks_if_not_announced(world: MakePool, again: bool) -> None:
    """torch would add the gradient of the one to that of the other; also after another Accelerator's prepare."""
    for error in world(2).run(refused, again):
        assert "rank 0 lacks gradients of experts.1.weight, experts.1.bias" in error
        assert "rank 1 lacks gradients of experts.0.weight, experts.0.bias" in error
        assert "find_unused_parameters=True" in error


class Queued:
    """A reduce-scatter as of NCCL, where sizes are not compared and the host goes on."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def __call__(self, **_: Any) -> None:
        pass


def refused_in_a_window() -> str:
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="no_wrap")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=2)
    model = accelerator.prepare(Routed())
    cast("Any", model).set_custom_reduce_scatter(Queued())
    accelerator.backward(model(ROWS, 0).sum() + model(ROWS, 1).sum())
    losses = [model(ROWS, expert).sum() for expert in range(2)]
    with pytest.raises(UnlikeParameters) as error:
        accelerator.backward(losses[0] + losses[1] if accelerator.is_main_process else losses[0])
    return str(error.value)


def test_a_parameter_left_out_inside_a_window_is_told(world: MakePool) -> None:
    """Both have a gradient of the micro-batch before."""
    for error in world(2).run(refused_in_a_window):
        assert "rank 1 lacks gradients of " in error
        assert "rank 0" not in error


class Layers(nn.Module):
    """Four layers in one block of torch, of which a forward uses those that are named."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4, dtype=torch.float64) for _ in range(4)])

    def forward(self, used: tuple[int, ...]) -> Tensor:
        return torch.stack([self.layers[one](ROWS).sum() for one in used]).sum()


ALL = (0, 1, 2, 3)


def queued(every: int = 1, replaced: bool = False) -> tuple[Accelerator, Layers, Optimizer]:
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="no_wrap")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=every)
    model = accelerator.prepare(Layers())
    cast("Any", model).set_custom_reduce_scatter(Queued())
    if replaced:
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    return accelerator, model, accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))


def refused_where(backward: str) -> str:
    accelerator, model, optimizer = queued(replaced=backward == "of replaced parameters")
    loss = model(ALL if accelerator.is_main_process else ALL[1:])
    if backward == "of torch":
        loss.backward()
        with pytest.raises(UnlikeParameters) as error:
            optimizer.step()
    else:
        with pytest.raises(UnlikeParameters) as error:
            accelerator.backward(loss)
    return str(error.value)


@pytest.mark.parametrize("backward", ["of replaced parameters", "of torch"])
def test_other_backwards_are_compared_too(world: MakePool, backward: str) -> None:
    """One whose parameters came after prepare, and one that accel has not made, at the step."""
    for error in world(2).run(refused_where, backward):
        assert "rank 1 lacks gradients of layers.0.weight, layers.0.bias" in error
        assert "rank 0" not in error


def goes_on_after_a_refusal() -> None:
    accelerator, model, optimizer = queued()
    for used in (ALL[:2], ALL, ALL):
        try:
            accelerator.backward(model(ALL if accelerator.is_main_process else used))
        except UnlikeParameters:
            assert used != ALL
        else:
            assert used == ALL
            optimizer.step()
        optimizer.zero_grad()


def test_a_script_may_go_on_after_a_refusal(world: MakePool) -> None:
    world(2).run(goes_on_after_a_refusal)


def repaired_on_a_rank() -> None:
    accelerator, model, optimizer = queued(every=2)
    if not accelerator.is_main_process:
        for parameter in model.parameters():
            cast("Any", parameter).register_post_accumulate_grad_hook(lambda one: one.grad.to_local().nan_to_num_())
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(ALL))
            optimizer.step()
            optimizer.zero_grad()


def test_a_gradient_may_be_changed_in_place_on_some_ranks(world: MakePool) -> None:
    world(2).run(repaired_on_a_rank)


def remembered() -> int:
    accelerator, model, optimizer = queued(every=2)
    for used in (chosen for size in ALL for chosen in combinations(ALL, size + 1)):
        for micro_batch in (used, ALL):
            with accelerator.accumulate(model):
                accelerator.backward(model(micro_batch))
                optimizer.step()
                optimizer.zero_grad()
    (exchanges,) = cast("Any", accelerator.training)._steps.models
    return len(exchanges.check._agreed)


def test_few_kinds_of_backwards_are_remembered(world: MakePool) -> None:
    """Of 15, as layers may be left out at random."""
    assert world(2).run(remembered) == [8, 8]


def unused_by_all() -> bool:
    accelerator = Accelerator(cpu=True, strategy="fsdp2")
    model = Routed()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    before = cast("DTensor", model.experts[1].weight).to_local().clone()
    accelerator.backward(model(ROWS[:1], 0).sum())
    optimizer.step()
    return torch.equal(before, cast("DTensor", model.experts[1].weight).to_local())


def test_parameters_that_no_rank_uses_stay(world: MakePool) -> None:
    """As in one process: no gradient, and no decay of weights."""
    assert world(2).run(unused_by_all) == [True, True]
