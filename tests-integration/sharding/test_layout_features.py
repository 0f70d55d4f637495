"""What a layout of processes does with the rest of the API: it trains as one process does, or refuses in words."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from accel import Accelerator, LocalSGD
from accel_testing import MakePool, RankFailure
from sharded_models import LAYOUTS, Odd, prepared
from suite.soak import in_soak
from torch import Tensor
from toy_language_models import Case, train
from trained_runs import assert_same
from whole_tensors import whole


def gradients_of_two_batches(ways: dict[str, Any], apart: bool) -> dict[str, Tensor]:
    """The whole gradients after two backwards, of which the first is inside of no_sync or is not."""
    accelerator, model, _ = prepared(ways)
    size, index = accelerator.run.mesh.data_size, accelerator.run.mesh.data_rank(accelerator.process_index)
    for step in range(2):
        tokens = (torch.arange(4) * 3 + step).view(size, -1)[index] % 7
        if apart and step == 0:
            with accelerator.no_sync(model):
                accelerator.backward(model(tokens))
        else:
            accelerator.backward(model(tokens))
    accelerator.clip_grad_value_(model.parameters(), 1e9)  # which completes gradients, and cuts none
    parameters = dict(accelerator.unwrap_model(model).named_parameters())
    return {name: whole(value.grad) for name, value in parameters.items() if value.grad is not None}


@pytest.mark.parametrize("layout", ["ddp", "fsdp2", "hsdp", "tp", *in_soak("fsdp2 and tp")])
def test_no_sync_changes_no_gradient(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    pool = world(processes)
    wanted = pool.run(gradients_of_two_batches, ways, False)[0]
    assert len(wanted) > 5
    for found in pool.run(gradients_of_two_batches, ways, True):
        torch.testing.assert_close(found, wanted)


def refusals(ways: dict[str, Any]) -> list[str]:
    accelerator, model, _ = prepared(ways)
    told = []
    with pytest.raises(ValueError, match="LocalSGD") as error:
        LocalSGD(accelerator, model, 2)
    told.append(str(error.value))
    with pytest.raises(ValueError, match="join_uneven_inputs") as error, accelerator.join_uneven_inputs([model]):
        pass
    told.append(str(error.value))
    return told


@pytest.mark.parametrize("layout", ["fsdp2", "tp", *in_soak("hsdp", "fsdp2 and tp")])
def test_what_needs_whole_weights_on_each_rank_is_refused(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    for told in world(processes).run(refusals, ways):
        assert "each rank holds a part of each parameter, and cannot train alone; leave LocalSGD out" in told[0]
        assert "each forward gathers weights from all ranks, so all need equally many batches" in told[1]


def values_clipped(ways: dict[str, Any]) -> list[Tensor]:
    accelerator, model, _ = prepared(ways)
    accelerator.backward(model(torch.arange(7)) * 100)
    accelerator.clip_grad_value_(model.parameters(), 0.01)
    parameters = accelerator.unwrap_model(model).parameters()
    return [whole(parameter.grad) for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("layout", ["ddp", "fsdp2", "tp", *in_soak("hsdp", "fsdp2 and tp")])
def test_values_are_clipped_in_each_part(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    torch.manual_seed(0)
    wanted = values_clipped({})
    assert max(gradient.abs().max().item() for gradient in wanted) == pytest.approx(0.01)
    for found in world(processes).run(values_clipped, ways):
        torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(find_spec("transformers") is None, reason="Transformers is not installed")
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-2), ("fp16", 5e-3)])
@pytest.mark.parametrize("layout", ["hsdp", "tp", *in_soak("fsdp2 and tp")])
@pytest.mark.grid(1)
def test_half_precision_trains_as_ddp_does(world: MakePool, layout: str, precision: str, tolerance: float) -> None:
    case = Case("llama", precision=precision, dtype="float32", steps=3)
    wanted = world(2).run(train, case, "ddp", timeout_s=60)[0]
    for found in world(LAYOUTS[layout][0]).run(train, case, layout, timeout_s=60):
        torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)
        # Adam hides a gradient that is too large by a factor
        torch.testing.assert_close(found.norms, wanted.norms, rtol=tolerance, atol=tolerance)


def dtypes_of_half(ways: dict[str, Any]) -> set[torch.dtype]:
    model = Accelerator(cpu=True, mixed_precision="bf16", **ways).prepare(Odd().bfloat16())
    return {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}


@pytest.mark.parametrize("layout", ["tp", *in_soak("fsdp2", "hsdp", "fsdp2 and tp")])
def test_a_model_in_half_precision_gets_master_weights(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    assert world(processes).run(dtypes_of_half, ways) == [{torch.float32}] * processes


@pytest.mark.soak(only=True)
@pytest.mark.skipif(find_spec("transformers") is None, reason="Transformers is not installed")
@pytest.mark.parametrize("regional", [True, False])
def test_a_compiled_model_trains_in_sharded_copies_as_on_one_process(world: MakePool, regional: bool) -> None:
    wanted, case = train(Case("llama", steps=3), "one process"), Case("llama", backend="aot_eager", steps=3)
    for found in world(4).run(train, case._replace(regional=regional), "hsdp", timeout_s=90):
        assert_same(found, wanted, 1e-9)


@pytest.mark.soak(only=True)
@pytest.mark.skipif(find_spec("transformers") is None, reason="Transformers is not installed")
@pytest.mark.parametrize("layout", ["tp", "fsdp2 and tp"])
def test_dynamo_cannot_compile_divided_layers_whole(world: MakePool, layout: str) -> None:
    """If this fails with a newer torch, the page about sharding has to follow."""
    case = Case("llama", backend="aot_eager", regional=False, steps=1)
    with pytest.raises(RankFailure, match="Mixing fake modes"):
        world(LAYOUTS[layout][0]).run(train, case, layout, timeout_s=90)
