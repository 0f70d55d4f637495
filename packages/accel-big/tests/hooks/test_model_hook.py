"""Hooks around the forwards of modules."""

import inspect
from typing import Any

import pytest
import torch
from accel_big import (
    AlignDevicesHook,
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    attach_align_device_hook,
    attach_execution_device_hook,
    cpu_offload_with_hook,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accel_state.errors import CannotRun
from torch import nn


class Before(ModelHook):
    """Adds one to the argument."""

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (args[0] + 1, *args[1:]), kwargs


class After(ModelHook):
    """Adds one to the result, and writes down failures."""

    failures = 0

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        return output + 1

    def forward_failed(self, module: nn.Module) -> None:
        self.failures += 1


def test_a_hook_runs_around_the_forward_which_keeps_name_and_signature() -> None:
    """S144."""
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    plain, shifted = model(x), model(x + 1)
    signature = inspect.signature(model.forward)
    add_hook_to_module(model, Before())
    assert torch.equal(model(x), shifted)
    assert model.forward.__name__ == "forward"
    assert inspect.signature(model.forward) == signature
    add_hook_to_module(model, After())
    assert torch.equal(model(x), plain + 1), "the new hook replaces the one before it"
    remove_hook_from_module(model)
    assert torch.equal(model(x), plain)
    assert "forward" not in model.__dict__
    assert not hasattr(model, "_hf_hook")


def test_appended_hooks_run_in_their_order() -> None:
    """S144."""
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    expected = model(x + 2) + 1
    add_hook_to_module(model, Before())
    add_hook_to_module(model, Before(), append=True)
    add_hook_to_module(model, After(), append=True)
    assert torch.equal(model(x), expected)
    assert isinstance(model._hf_hook, SequentialHook)
    remove_hook_from_module(model)
    add_hook_to_module(model, SequentialHook(Before(), Before(), After()))
    assert torch.equal(model(x), expected)


def test_a_forward_of_the_instance_comes_back() -> None:
    model = nn.Linear(3, 3)
    model.forward = lambda x: x * 3  # type: ignore[method-assign, assignment] # as users do
    add_hook_to_module(model, Before())
    assert model(torch.ones(1)).item() == 6
    remove_hook_from_module(model)
    assert model(torch.ones(1)).item() == 3


def test_a_hook_may_turn_gradients_off() -> None:
    model = nn.Linear(3, 3)
    hook = ModelHook()
    hook.no_grad = True
    assert add_hook_to_module(model, hook)(torch.ones(3)).requires_grad is False
    remove_hook_from_module(model)
    assert model(torch.ones(3)).requires_grad


def test_hooks_learn_that_a_forward_failed() -> None:
    class Fails(ModelHook):
        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("boom")

    model, after = nn.Linear(3, 3), After()
    add_hook_to_module(model, after)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(2, 4))
    assert after.failures == 1
    add_hook_to_module(model, Fails(), append=True)
    with pytest.raises(RuntimeError, match="boom"):
        model(torch.ones(2, 3))
    assert after.failures == 2


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))


def metas(model: nn.Module) -> list[str]:
    return [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]


def test_offloaded_weights_are_there_while_their_module_computes() -> None:
    """S143, S144: with weights of the model itself, or of a mapping, and buffers if they are asked for."""
    x = torch.randn(2, 3)
    for offload_buffers in (False, True):
        model = make().eval()
        expected = model(x)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for weights_map in (None, weights):
            attach_align_device_hook(
                model, "cpu", offload=True, weights_map=weights_map, offload_buffers=offload_buffers
            )
            assert len(metas(model)) == (9 if offload_buffers else 6)
            assert torch.equal(model(x), expected)
            assert len(metas(model)) == (9 if offload_buffers else 6)
            with pytest.raises(RuntimeError):
                model(torch.ones(2, 7))
            assert len(metas(model)) == (9 if offload_buffers else 6), "also after an error"
            remove_hook_from_submodules(model)
            assert metas(model) == []
            assert model.get_parameter("0.weight").requires_grad
            assert torch.equal(model(x), expected)


def test_modules_that_use_what_is_in_them_have_one_hook() -> None:
    """Attention of torch reads its projection without calling it; lists of parameters have no forward."""

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.scales = nn.ParameterList([torch.full((4,), 2.0), torch.full((4,), 3.0)])
            self.inner = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner: Any = self.inner[0]
            attended: torch.Tensor = self.attention(x, x, x)[0]
            total: torch.Tensor = attended * self.scales[0] * self.scales[1] + inner.weight.sum()
            return total

    model, x = Sums(), torch.randn(3, 4)
    expected = model(x)
    attach_align_device_hook(model, "cpu", offload=True, preload_module_classes=["Sums"])
    assert torch.equal(model(x), expected)
    remove_hook_from_submodules(model)
    model.forward = lambda x: Sums.forward(model, x) - model.inner[0].weight.sum() + model.inner[0](x).sum() * 0  # type: ignore
    attach_align_device_hook(model.attention, "cpu", offload=True)
    assert torch.allclose(model(x), expected - model.inner[0].weight.sum())  # type: ignore[operator]


def test_arguments_go_where_the_module_computes_and_results_back() -> None:
    model = nn.Linear(3, 3)
    attach_execution_device_hook(model, "cpu")
    assert model(torch.ones(3)).device.type == "cpu"
    remove_hook_from_module(model)
    hook = AlignDevicesHook("cpu", io_same_device=True)
    add_hook_to_module(model, hook)
    with pytest.raises(NotImplementedError, match="meta"):
        model(torch.ones(3, device="meta"))
    assert hook._came_from == {}
    with pytest.raises(CannotRun, match="torch knows no such device"):
        AlignDevicesHook("nowhere")


def test_models_of_a_pipeline_take_turns() -> None:
    """S143."""
    first, hook = cpu_offload_with_hook(make().eval(), "cpu")
    second, last = cpu_offload_with_hook(make().eval(), "cpu", prev_module_hook=hook)
    x = torch.randn(2, 3)
    assert torch.equal(first(x), second(x))
    last.offload()
    last.remove()
    hook.remove()
    assert "forward" not in second.__dict__
    assert torch.equal(first(x), make().eval()(x))
