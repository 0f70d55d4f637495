"""Hooks on blocks: their arguments and their weights go to the device of the block."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_big import AlignDevicesHook, attach_align_device_hook_on_blocks, dispatch_model, remove_hook_from_submodules
from accel_big.hooks.model_hook import hook_of
from accel_state.errors import CannotRun
from torch import nn


class Residual(nn.Module):
    """Adds what it is called with to what its layer makes of it: both have to be on one device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(x))


class Net(nn.Module):
    """Two blocks in a list that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Residual()
        self.blocks = nn.ModuleList([Residual(), Residual()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


X = torch.linspace(-1, 1, 6).view(2, 3)


def hooks(module: nn.Module) -> list[AlignDevicesHook]:
    found: Any = hook_of(module)
    return [] if found is None else list(vars(found).get("hooks", [found]))


def test_weights_of_offloaded_blocks_come_only_while_they_are_used() -> None:
    """S143."""
    net = Net()
    model = copy.deepcopy(net)
    attach_align_device_hook_on_blocks(model, {"first": "cpu", "blocks": "cpu"}, {"first": False, "blocks": True})
    assert [name for name, tensor in model.named_parameters() if not tensor.is_meta] == [
        "first.layer.weight",
        "first.layer.bias",
    ]
    assert torch.equal(model(X), net(X))
    remove_hook_from_submodules(model)
    assert torch.equal(model(X), net(X))
    attach_align_device_hook_on_blocks(model, "cpu", offload=True, tied_params_map={})
    assert all(tensor.is_meta for tensor in model.parameters())
    assert torch.equal(model(X), net(X))


def test_blocks_of_no_module_are_told_all_at_once() -> None:
    model = Net()
    with pytest.raises(CannotRun) as caught:
        attach_align_device_hook_on_blocks(
            model, {"first": "cpu", "first.layer": "cpu", "last": "cpu"}, {"first": True}
        )
    for words in ("'last' is no module", "'first.layer' is in one mapping alone", "'first.layer' is in 'first'"):
        assert words in str(caught.value)
    assert hook_of(model) is None


def test_arguments_of_a_block_go_to_its_device_before_its_layers_run(tmp_path: Path) -> None:
    """S143: with one device that has two names, as there are not two here."""
    net = Net()
    places: dict[str, int | str | torch.device] = {"first": "cpu", "blocks": torch.device("cpu", 0)}
    model: Any = dispatch_model(copy.deepcopy(net), places, main_device="cpu", offload_dir=tmp_path)
    for block in model.blocks:
        assert [str(hook.execution_device) for hook in hooks(block)] == ["cpu:0"]
    assert [str(hook.execution_device) for hook in hooks(model.first)] == ["cpu"]
    assert hooks(model.blocks) == []
    assert torch.equal(model(X), net(X))
