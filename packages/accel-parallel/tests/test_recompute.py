"""Blocks whose activations are computed again: less is kept, and nothing else changes."""

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_parallel import outermost, recompute
from accel_parallel.wrap_policy import UnknownBlocks, like_blocks
from torch import Tensor, nn


class Block(nn.Module):
    """Draws random numbers, and appends to a cache as blocks of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, hidden: Tensor, past_key_values: list[Tensor] | None = None) -> Tensor:
        if past_key_values is not None:
            past_key_values.append(hidden)
        outputs: Tensor = hidden + self.second(self.drop(torch.tanh(self.first(hidden))))
        return outputs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None, *, by_name: bool = False) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden, past_key_values=cache) if by_name else block(hidden, cache)
        return hidden


def differentiated(model: nn.Module, **ways: Any) -> tuple[int, list[Tensor]]:
    """How many numbers are kept for the backward; the outputs, the gradients, and a random number of after that."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    torch.manual_seed(1)
    inputs = torch.ones(16, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        outputs = model(inputs, **ways)
    outputs.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return sum(kept), [outputs.detach(), *gradients, torch.rand(1)]


def test_less_is_kept_and_no_number_changes() -> None:
    """S129: random numbers are those of the first run."""
    plain, model = Model(), Model()
    recompute(model, like_blocks(model))
    kept, found = differentiated(model)
    much, wanted = differentiated(plain)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert len(found) == 18
    assert kept * 4 < much


def test_names_keys_and_classes_stay() -> None:
    """T31."""
    model: Any = Model()
    recompute(model, like_blocks(model))
    recompute(model, like_blocks(model))
    assert {type(block) for block in model.blocks} == {Block}
    assert list(model.state_dict()) == list(Model().state_dict())
    inputs = torch.ones(2, 8)
    model.eval()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        nn.init.zeros_(model.blocks[0].first.weight)
        assert torch.equal(copied(inputs), Model().eval()(inputs))


@pytest.mark.parametrize("by_name", [True, False])
def test_a_cache_is_filled_without_gradients_only(by_name: bool) -> None:
    model, cache = Model(), list[Tensor]()
    recompute(model, like_blocks(model))
    differentiated(model, cache=cache, by_name=by_name)
    assert cache == []
    with torch.no_grad():
        model(torch.ones(1, 8), cache, by_name=by_name)
    assert len(cache) == 4


def test_what_would_recompute_nothing_or_twice_is_refused() -> None:
    with pytest.raises(UnknownBlocks, match="no block was found in Linear; name the classes"):
        recompute(nn.Linear(2, 2), [])
    model: Any = Model()
    model.blocks[0].gradient_checkpointing = True
    with pytest.raises(ValueError, match="does it already"):
        recompute(model, like_blocks(model))


class Elsewhere(Model):
    """A model on a device that torch has no module for."""

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=SimpleNamespace(type="odd"))])


def test_a_device_whose_random_numbers_torch_does_not_keep_is_refused() -> None:
    model = Elsewhere()
    with pytest.raises(ValueError, match=r"torch draws no random numbers again on odd \(it has no torch.odd\)"):
        recompute(model, like_blocks(model))


def test_of_blocks_inside_of_blocks_the_outer_are_recomputed() -> None:
    model: Any = Model()
    assert outermost([*like_blocks(model), model.blocks[0].first]) == list(model.blocks)
