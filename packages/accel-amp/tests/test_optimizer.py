"""An optimizer that steps when a step is due, and is otherwise the one inside it."""

import copy
import pickle
from typing import Any

import pytest
import torch
from accel_amp import AcceleratedOptimizer, LossScaler
from accel_amp.optimizer_state import NamedOptimizerState
from accel_state import AccumulationState
from accel_testing import assert_same_numbers
from suite.toy_models import Mlp, Regression
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._python_dispatch import TorchDispatchMode


def one(value: float = 1.0) -> nn.Parameter:
    parameter = nn.Parameter(torch.tensor([value]))
    parameter.grad = torch.ones(1)
    return parameter


def fp16(*parameters: nn.Parameter, scale: float = 8.0) -> AcceleratedOptimizer:
    return AcceleratedOptimizer(SGD(parameters, lr=1.0), scaler=LossScaler("cpu", init_scale=scale))


def learn(model: nn.Module, optimizer: Optimizer, *, zero_first: bool) -> None:
    for step in range(3):
        x = torch.linspace(-1, 1, 16).view(2, 8) + step
        if zero_first:
            optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_prepared_optimizer_trains_as_the_plain_one(zero_first: bool) -> None:
    """S40, S65, S66: the loop is unchanged, with `zero_grad` before or after the step."""
    plain, ready = Mlp(), Mlp()
    learn(plain, Adam(plain.parameters(), lr=0.1), zero_first=zero_first)
    learn(ready, AcceleratedOptimizer(Adam(ready.parameters(), lr=0.1)), zero_first=zero_first)
    assert_same_numbers(ready.state_dict(), plain.state_dict(), atol=0)


def test_it_has_the_groups_state_and_defaults_of_the_inner_optimizer() -> None:
    """S40"""
    inner = SGD([one()], lr=0.5, momentum=0.9)
    ready = AcceleratedOptimizer(inner)
    assert isinstance(ready, Optimizer)
    ready.step()
    for name in ("state", "param_groups", "defaults"):
        assert getattr(ready, name) is getattr(inner, name)
        replaced = copy.copy(getattr(inner, name))
        setattr(ready, name, replaced)
        assert getattr(inner, name) is replaced
    ready.add_param_group({"params": [one()], "lr": 0.1})
    assert [group["lr"] for group in inner.param_groups] == [0.5, 0.1]
    assert "SGD" in repr(ready)


def test_its_state_dict_is_that_of_the_inner_one() -> None:
    trained, fresh = Adam([one()], lr=0.1), Adam([one()], lr=0.9)
    trained.step()
    ready = AcceleratedOptimizer(fresh)
    ready.load_state_dict(AcceleratedOptimizer(trained).state_dict())
    assert_same_numbers(fresh.state_dict(), trained.state_dict(), atol=0)
    assert ready.param_groups[0]["lr"] == 0.1


def test_only_an_optimizer_that_is_not_prepared_yet_is_taken() -> None:
    with pytest.raises(TypeError, match=r"only a torch.optim.Optimizer can be prepared, found a Linear"):
        AcceleratedOptimizer(nn.Linear(1, 1))  # type: ignore[arg-type] # the mistake
    with pytest.raises(TypeError, match="prepared already; prepare it once"):
        AcceleratedOptimizer(AcceleratedOptimizer(SGD([one()])))


def test_nothing_steps_and_nothing_is_cleared_within_a_window() -> None:
    """S98"""
    accumulation, parameter = AccumulationState(2), one()
    optimizer = AcceleratedOptimizer(SGD([parameter], lr=1.0), accumulation=accumulation)
    for expected in (1.0, 0.0):
        accumulation.tick()
        optimizer.step()
        optimizer.zero_grad()
        assert parameter.item() == expected
        assert (parameter.grad is None) == accumulation.due


def test_gradients_are_set_to_none_or_to_zero() -> None:
    parameter = one()
    optimizer = AcceleratedOptimizer(SGD([parameter]))
    optimizer.zero_grad(set_to_none=False)
    assert parameter.grad is not None
    assert parameter.grad.item() == 0
    optimizer.zero_grad()
    assert parameter.grad is None


def test_a_closure_is_called_and_its_loss_returned() -> None:
    model, accumulation = Regression(1.0, 0.0), AccumulationState()
    optimizer = AcceleratedOptimizer(SGD(model.parameters(), lr=0.1), accumulation=accumulation)
    calls = []

    def closure() -> Tensor:
        calls.append(accumulation.due)
        optimizer.zero_grad()
        loss: Tensor = model(torch.tensor(2.0))
        loss.backward()  # type: ignore[no-untyped-call] # of torch
        return loss

    result = optimizer.step(closure)
    assert result.item() == 2.0
    assert calls == [True]
    assert model.a.item() == pytest.approx(0.8)
    accumulation.set_every(2)
    with pytest.raises(ValueError, match="a closure computes the loss of one micro-batch"):
        optimizer.step(closure)


def test_a_closure_is_refused_in_fp16() -> None:
    with pytest.raises(ValueError, match="fp16 cannot step with a closure"):
        fp16(one()).step(lambda: torch.tensor(0.0))


def test_steps_that_overflow_are_skipped_without_an_error_and_said_to_be() -> None:
    """S67, S70, S71: finite, nan, nan, finite."""
    parameter = one(10.0)
    optimizer = fp16(parameter, scale=8.0)
    assert isinstance(optimizer.scaler, LossScaler)
    seen = []
    for value in (1.0, float("nan"), float("nan"), 1.0):
        optimizer.zero_grad()
        optimizer.scaler.scale(value * parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
        optimizer.step()
        seen.append((optimizer.step_was_skipped, parameter.item(), optimizer.scaler.get_scale()))
    assert seen == [(False, 9.0, 8.0), (True, 9.0, 4.0), (True, 9.0, 2.0), (False, 8.0, 2.0)]


def test_a_skipped_step_is_remembered_through_a_window() -> None:
    """S71: what counts is the last step."""
    accumulation, parameter = AccumulationState(), one()
    optimizer = AcceleratedOptimizer(SGD([parameter]), scaler=LossScaler("cpu"), accumulation=accumulation)
    parameter.grad = torch.full((1,), float("inf"))
    optimizer.scaler.scale(torch.ones(1))  # type: ignore[union-attr] # it has one
    optimizer.step()
    accumulation.due = False
    optimizer.step()
    assert optimizer.step_was_skipped


def test_two_optimizers_of_one_step_see_one_scale() -> None:
    """S70"""
    first, second = one(), one()
    scaler = LossScaler("cpu", init_scale=8.0)
    optimizers = [AcceleratedOptimizer(SGD([each], lr=1.0), scaler=scaler) for each in (first, second)]
    scaler.scale(first.sum() * float("inf") + second.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    second.grad = torch.tensor([8.0])
    for optimizer in optimizers:
        optimizer.step()
    assert [optimizer.step_was_skipped for optimizer in optimizers] == [True, False]
    assert (first.item(), second.item()) == (1.0, 0.0)
    assert scaler.get_scale() == 4.0


def test_unscaled_gradients_that_are_dropped_leave_the_next_step_right() -> None:
    """S73: a script may clip, look at the norm, and decide not to step."""
    parameter = nn.Parameter(torch.tensor([10.0]))
    optimizer = fp16(parameter, scale=8.0)
    assert isinstance(optimizer.scaler, LossScaler)
    for thrown_away in (True, False):
        optimizer.zero_grad()
        optimizer.scaler.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
        optimizer.scaler.unscale(optimizer.optimizer)
        assert parameter.grad is not None
        assert parameter.grad.item() == 1.0
        if not thrown_away:
            optimizer.step()
    assert parameter.item() == 9.0


def on_meta_with_state_on_the_cpu() -> tuple[nn.Module, Adam, dict[str, Any]]:
    """As after `Adam(model.parameters())`, some steps, and a move of the model to its device."""
    trained = nn.Linear(2, 2)
    trained(torch.ones(1, 2)).sum().backward()
    before = Adam(trained.parameters(), lr=0.1)
    before.step()
    model = nn.Linear(2, 2, device="meta")
    optimizer = Adam(model.parameters(), lr=0.1)
    for new, old in zip(model.parameters(), trained.parameters(), strict=True):
        optimizer.state[new] = dict(before.state[old])
    return model, optimizer, before.state_dict()


def devices(optimizer: Optimizer) -> set[str]:
    return {state[name].device.type for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")}


def test_state_goes_where_its_parameter_is() -> None:
    """S41: on wrapping, and again after `load_state_dict`; `meta` stands in for an accelerator."""
    model, inner, saved = on_meta_with_state_on_the_cpu()
    assert devices(inner) == {"cpu"}
    optimizer = AcceleratedOptimizer(inner)
    assert devices(optimizer) == {"meta"}
    optimizer.load_state_dict(saved)
    assert devices(optimizer) == {"meta"}
    assert {id(parameter) for parameter in optimizer.state} == {id(parameter) for parameter in model.parameters()}


def test_state_stays_where_it_is_without_placement() -> None:
    """S18, S41"""
    _, inner, _ = on_meta_with_state_on_the_cpu()
    assert devices(AcceleratedOptimizer(inner, device_placement=False)) == {"cpu"}


def test_state_goes_to_the_device_of_the_tests(device: torch.device) -> None:
    """S41"""
    if device.type == "xla":
        pytest.skip("a move to XLA makes new parameters, which prepare puts into optimizers: test_any_device.py has it")
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    inner = Adam(model.parameters())
    inner.step()
    model.to(device)
    optimizer = AcceleratedOptimizer(inner)
    assert devices(optimizer) == {device.type}
    model(torch.ones(1, 2, device=device)).sum().backward()
    optimizer.step()


class ScheduleFree(SGD):
    mode = "none"

    def train(self) -> None:
        self.mode = "train"

    def eval(self) -> None:
        self.mode = "eval"


def test_an_optimizer_that_has_modes_is_told_of_them() -> None:
    inner = ScheduleFree([one()])
    optimizer = AcceleratedOptimizer(inner)
    optimizer.train()
    assert inner.mode == "train"
    optimizer.eval()
    assert inner.mode == "eval"


def test_one_without_modes_is_left_alone() -> None:
    optimizer = AcceleratedOptimizer(SGD([one()]))
    optimizer.train()
    optimizer.eval()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_steps_parameters_of_its_own(twin_of: Any, scheduled: bool) -> None:
    """Also when a scheduler has put a `step` of its own into the optimizer."""
    parameter = one()
    optimizer = AcceleratedOptimizer(SGD([parameter], lr=1.0))
    if scheduled:
        LambdaLR(optimizer, lambda _: 1.0)
    twin = twin_of(optimizer)
    (other,) = twin.param_groups[0]["params"]
    other.grad = torch.ones(1)
    twin.step()
    assert (parameter.item(), other.item()) == (1.0, 0.0)
    assert type(twin) is AcceleratedOptimizer


def test_hooks_and_attributes_are_those_of_the_inner_optimizer() -> None:
    optimizer = AcceleratedOptimizer(ScheduleFree([one()]))
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["before", "after"]
    with pytest.raises(AttributeError, match="nothing"):
        optimizer.nothing  # noqa: B018 # the look raises


def test_the_step_boundary_is_told_of_steps_and_of_nothing_else() -> None:
    told: list[int] = []
    accumulation = AccumulationState(2)
    optimizer = AcceleratedOptimizer(SGD([one()]), accumulation=accumulation, step_boundary=lambda: told.append(1))
    for due in (False, True):
        assert accumulation.tick() == due
        optimizer.step()
        optimizer.zero_grad()
        assert bool(told) == due


class Looks(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """Counts how often the host waits for a number."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_the_host_looks_at_skips_of_a_fused_optimizer_only_when_asked() -> None:
    """To look is to wait for the device, at each step."""
    parameter = nn.Parameter(torch.ones(2))
    scaler = LossScaler("cpu", init_scale=8.0)
    prepared = AcceleratedOptimizer(Adam([parameter], lr=0.1, fused=True), scaler=scaler)
    with Looks() as looks:  # type: ignore[no-untyped-call] # of torch
        for factor in (1.0, float("inf"), 1.0, float("inf")):
            torch.autograd.backward(scaler.scale((parameter * factor).sum()))
            prepared.step()
            prepared.zero_grad()
        assert looks.count == 0
        assert (prepared.step_was_skipped, prepared.steps) == (True, 2)
        assert looks.count == 2


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_a_state_by_names_takes_a_parameter_that_is_listed_twice() -> None:
    first, second = one(), one()
    optimizer = Adam([first, first, second])
    optimizer.step()
    named = NamedOptimizerState(optimizer, {id(first): "first", id(second): "second"})
    saved = copy.deepcopy(named.state())
    optimizer.step()
    named.load(saved)
    assert_same_numbers(named.state(), saved, atol=0, rtol=0)
