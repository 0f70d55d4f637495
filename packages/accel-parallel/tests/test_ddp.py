"""Two processes hold one model: equal at the start, equal after a step, and different in between when asked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accel_amp import PRECISIONS, PrecisionPolicy, wrap_forward
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_parallel import STRATEGIES, Strategy
from accel_parallel.strategies import ddp as ddp_module
from accel_parallel.strategies.ddp import Ddp
from accel_state import PartialState, Run, Topology
from accel_state.devices.cpu import Cpu
from accel_testing import MakePool, assert_same_numbers
from suite.toy_models import Mlp, Regression
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

Numbers = dict[str, Tensor]


def ddp() -> Strategy:
    return STRATEGIES.load("ddp")()


def run_here() -> Run:
    transport = TorchDist()
    topology = Topology(rank=transport.rank, world_size=2, local_rank=transport.rank, local_world_size=2)
    return Run(topology, Cpu(), torch.device("cpu"), transport)


def alone() -> Run:
    return Run(Topology(), Cpu(), torch.device("cpu"), Single())


def share(rank: int) -> Tensor:
    """Two of the four rows that one process would have."""
    return torch.linspace(-1, 1, 32).view(4, 8)[2 * rank : 2 * rank + 2]


def grads(model: nn.Module) -> Numbers:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def wrapped() -> tuple[bool, bool, Numbers]:
    run = run_here()
    model = Mlp(seed=run.topology.rank)
    strategy = ddp()
    ready = strategy.setup(model, run, PrecisionPolicy())
    same = strategy.unwrap(ready) is model
    return isinstance(ready, DistributedDataParallel), same, model.state_dict()


def test_two_processes_get_the_container_and_the_weights_of_rank_zero(world: MakePool) -> None:
    """S38, S39: wrapped, and unwrapped to the very model."""
    for is_ddp, same, weights in world(2).run(wrapped):
        assert is_ddp
        assert same
        assert_same_numbers(weights, Mlp(seed=0).state_dict(), atol=0)


def trained(precision: str) -> Numbers:
    run = run_here()
    model = wrap_forward(Mlp(seed=run.topology.rank), PRECISIONS.load(precision).policy, "cpu")
    ready = ddp().setup(model, run, PrecisionPolicy())
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ready(share(run.topology.rank)).square().mean().backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(("precision", "atol"), [("no", 1e-6), ("bf16", 1e-2)])
def test_two_processes_train_as_one_with_twice_the_batch(world: MakePool, precision: str, atol: float) -> None:
    """S1: equal parameters."""
    zero, one = world(2).run(trained, precision)
    assert_same_numbers(zero, one, atol=0)
    model = Mlp(seed=0)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.cat([share(0), share(1)])).square().mean().backward()
        optimizer.step()
    assert_same_numbers(zero, model.state_dict(), atol=atol)


def accumulated() -> list[Numbers]:
    run = run_here()
    strategy = ddp()
    ready = strategy.setup(Mlp(), run, PrecisionPolicy())
    found = []
    for enabled in (False, True):
        with strategy.synchronising(ready, enabled=enabled):
            ready(share(run.topology.rank)).square().mean().backward()
        found.append({name: grad.clone() for name, grad in grads(ready).items()})
    return found


def test_gradients_stay_at_home_until_they_have_to_travel(world: MakePool) -> None:
    """S97: they differ between ranks within a window, and are the mean of all at its end."""
    zero, one = world(2).run(accumulated)
    alone = []
    for rank in range(2):
        model = Mlp()
        model(share(rank)).square().mean().backward()
        alone.append({f"module.{name}": grad for name, grad in grads(model).items()})
    assert_same_numbers([zero[0], one[0]], alone, atol=1e-6)
    mean = {name: alone[0][name] + alone[1][name] for name in alone[0]}  # two micro-batches of two ranks, halved
    assert_same_numbers(zero[1], mean, atol=1e-6)
    assert_same_numbers(one[1], zero[1], atol=0)


class Frozen(nn.Module):
    """A teacher: nothing to train, but weights and a buffer."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        for parameter in self.parameters():
            parameter.requires_grad_(False).fill_(value)
        self.count: Tensor
        self.register_buffer("count", torch.tensor(int(value)))


def frozen() -> tuple[bool, Numbers, bool]:
    run = run_here()
    model = Frozen(float(run.topology.rank + 5))
    ready = ddp().setup(model, run, PrecisionPolicy())
    with ddp().synchronising(ready, enabled=False):
        return ready is model, model.state_dict(), ddp().unwrap(ready) is model


def test_a_model_without_trained_weights_is_made_equal_and_not_wrapped(world: MakePool) -> None:
    for is_model, weights, unwrapped in world(2).run(frozen):
        assert is_model
        assert unwrapped
        assert_same_numbers(weights, Frozen(5.0).state_dict(), atol=0)


def clipped(kind: float) -> tuple[float, Numbers]:
    run = run_here()
    strategy = ddp()
    ready = strategy.setup(Regression(1.0, 2.0), run, PrecisionPolicy())
    (100 * ready(torch.tensor(1.0 + run.topology.rank))).backward()
    norm = strategy.steps.clip_norm(ready.parameters(), 1.0, kind=kind)
    return norm.item(), grads(ready)


@pytest.mark.parametrize("kind", [2.0, float("inf")])
def test_the_norm_is_torchs_and_the_same_on_every_rank(world: MakePool, kind: float) -> None:
    """S73"""
    zero, one = world(2).run(clipped, kind)
    model = Regression(1.0, 2.0)
    (100 * model(torch.tensor([1.0, 2.0])).mean()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=kind)
    assert zero[0] == one[0] == pytest.approx(norm.item())
    expected = {f"module.{name}": grad for name, grad in grads(model).items()}
    assert_same_numbers([zero[1], one[1]], [expected, expected], atol=1e-6)


def test_ddp_has_no_reason_not_to_run() -> None:
    assert list(ddp().check(alone(), PRECISIONS.load("fp16")())) == []


@pytest.mark.parametrize("options", [{"comm_hook": "bf16"}, {"find_unused_parameters": True}])
def test_options_of_the_container_are_refused_on_xla(options: dict[str, Any]) -> None:
    """S4: no container is there that would follow them."""
    on_xla, precision = replace(alone(), placed_on=torch.device("xla")), PRECISIONS.load("no")()
    assert list(ddp().check(on_xla, precision)) == []
    (reason,) = Ddp(**options).check(on_xla, precision)
    assert "leave out options and hooks" in reason


@pytest.mark.parametrize("strategy", [lambda: ddp(), lambda: STRATEGIES.load("single")()])
def test_a_model_that_is_not_wrapped_unwraps_to_itself(strategy: Callable[[], Strategy]) -> None:
    model = nn.Linear(2, 2)
    assert strategy().unwrap(model) is model


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(("meta", "meta"), [torch.device("meta")]), (("meta", "cpu"), None), (("cpu", "cpu"), None)],
)
def test_torch_hears_of_the_device_only_if_the_whole_model_is_on_it(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, str], expected: list[torch.device] | None
) -> None:
    """meta stands for an accelerator; torch refuses device_ids for a model on the CPU or on several devices."""
    told = {}
    monkeypatch.setattr(ddp_module, "ForwardingContainer", lambda model, *_, **options: told.update(options) or model)
    run = Run(Topology(), Cpu(), torch.device("meta"), Single())
    Ddp().setup(nn.Sequential(*(nn.Linear(1, 1, device=device) for device in devices)), run, PrecisionPolicy())
    assert told == {"device_ids": expected}


def left_on_the_cpu() -> Numbers:
    run = run_here()
    placed_on_gpu = Run(run.topology, run.device, torch.device("cuda:0"), run.transport)
    ready = ddp().setup(Mlp(), placed_on_gpu, PrecisionPolicy())
    ready(share(run.topology.rank)).square().mean().backward()
    return grads(ready)


def test_a_model_that_stays_on_the_cpu_of_a_gpu_job_is_trained_there(world: MakePool) -> None:
    zero, one = world(2).run(left_on_the_cpu)
    assert_same_numbers(zero, one, atol=0)


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(inputs)
        return out


def with_unused_parameters() -> bool:
    model = Ddp(find_unused_parameters=True).setup(HalfUsed(), PartialState(cpu=True).run, PrecisionPolicy())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    return isinstance(model, DistributedDataParallel) and model.find_unused_parameters


def test_parameters_that_are_not_used_can_be_allowed(world: MakePool) -> None:
    assert world(2).run(with_unused_parameters) == [True, True]


def names_of_unused_parameters() -> str:
    model = Ddp().setup(HalfUsed(), PartialState(cpu=True).run, PrecisionPolicy())
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError) as error:
        model(torch.ones(1, 2))
    return str(error.value)


def test_parameters_that_are_not_used_are_named(world: MakePool) -> None:
    for rank, message in enumerate(world(2).run(names_of_unused_parameters)):
        assert f"without gradients on rank {rank}," in message
        assert ": unused.weight, unused.bias. Use them" in message
        assert "find_unused_parameters=True" in message
