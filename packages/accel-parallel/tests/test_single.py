"""One process: nothing is wrapped, nothing travels, and more processes are refused."""

import pytest
import torch
from accel_amp import PRECISIONS, PrecisionPolicy
from accel_comm.transports.single import Single
from accel_parallel import STRATEGIES, Strategy
from accel_state import Run, Topology, UnknownName
from accel_state.devices.cpu import Cpu
from accel_testing import assert_same_numbers
from suite.toy_models import Mlp
from torch import nn


def single() -> Strategy:
    return STRATEGIES.load("single")()


def run_of(world_size: int) -> Run:
    topology = Topology(world_size=world_size, local_world_size=world_size)
    return Run(topology, Cpu(), torch.device("cpu"), Single())


def test_one_process_gets_its_model_back() -> None:
    """S38, S39: not wrapped."""
    model, strategy = Mlp(), single()
    assert strategy.setup(model, run_of(1), PrecisionPolicy()) is model
    assert strategy.unwrap(model) is model


def test_no_gradient_travels_either_way() -> None:
    expected = Mlp()
    expected(torch.ones(2, 8)).sum().backward()
    for enabled in (True, False):
        model, strategy = Mlp(), single()
        with strategy.synchronising(model, enabled=enabled):
            model(torch.ones(2, 8)).sum().backward()
        assert_same_numbers(
            [parameter.grad for parameter in model.parameters()],
            [parameter.grad for parameter in expected.parameters()],
            atol=0,
        )


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e6, float("inf")])
def test_clipping_is_torchs(max_norm: float, kind: float) -> None:
    """S73: the same norm, the same gradients."""
    models = [Mlp(), Mlp()]
    for model in models:
        model(torch.ones(2, 8)).square().sum().backward()
    ours = single().steps.clip_norm(iter(list(models[0].parameters())), max_norm, kind=kind)
    theirs = nn.utils.clip_grad_norm_(models[1].parameters(), max_norm, norm_type=kind)
    found, expected = ([parameter.grad for parameter in model.parameters()] for model in models)
    assert_same_numbers([ours, found], [theirs, expected], atol=0)


def test_the_default_norm_is_the_euclidean_one() -> None:
    parameter = nn.Parameter(torch.tensor([0.0, 0.0]))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert single().steps.clip_norm([parameter], 1.0).item() == 5.0


def test_more_processes_are_refused_with_what_to_use() -> None:
    no = PRECISIONS.load("no")()
    assert list(single().check(run_of(1), no)) == []
    assert single().check(run_of(4), no) == ["it is for one process, and this job has 4; use ddp"]


def test_the_files_of_the_folder_are_the_strategies() -> None:
    own = {"ddp", "fsdp2", "single", "spmd"}
    assert own <= set(STRATEGIES.names())
    for name in own:
        strategy = STRATEGIES.load(name)()
        assert isinstance(strategy, Strategy)
        assert strategy.name == name


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"no strategy named 'fsdp9'; there are: ddp, .*fsdp2, single"):
        STRATEGIES.load("fsdp9")
