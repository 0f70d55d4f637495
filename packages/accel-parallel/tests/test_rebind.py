"""A move that replaces parameters: the optimizer follows, or is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accel_comm import AccelError
from accel_parallel import StaleParameters, rebind, refuse_stale, replaced
from accel_parallel.rebind import follow
from accel_testing import assert_same_numbers
from suite.toy_models import Mlp
from torch import nn
from torch.optim import SGD, Adam


@pytest.fixture(autouse=True)
def moves_replace_parameters() -> Iterator[None]:
    """As on XLA: a move makes new parameters instead of filling the old ones."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(before)


def learn(model: nn.Module, optimizer: Adam) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8, dtype=torch.float64)).square().sum().backward()
        optimizer.step()


def moved(model: nn.Module) -> dict[torch.Tensor, torch.Tensor]:
    before = list(model.parameters())
    model.double()
    return replaced(before, model.parameters())


def test_what_was_replaced_is_found_in_the_order_of_the_parameters() -> None:
    model = Mlp()
    before = list(model.parameters())
    new_of = moved(model)
    assert [id(old) for old in new_of] == [id(old) for old in before]
    assert [id(new) for new in new_of.values()] == [id(new) for new in model.parameters()]
    assert replaced(model.parameters(), model.parameters()) == {}


def test_lists_that_do_not_match_are_no_replacement() -> None:
    with pytest.raises(ValueError, match="shorter"):
        replaced(list(Mlp().parameters()), [])


def test_a_rebound_optimizer_trains_what_the_model_has_now() -> None:
    """S119: the optimizer's parameters are the moved parameters."""
    expected = Mlp().double()
    learn(expected, Adam(expected.parameters(), lr=0.1))
    model = Mlp()
    optimizer = Adam(model.parameters(), lr=0.1)
    rebind(optimizer, moved(model))
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in held] == [id(parameter) for parameter in model.parameters()]
    learn(model, optimizer)
    assert_same_numbers(model.state_dict(), expected.state_dict(), atol=1e-12)


def test_state_and_groups_follow_in_their_places() -> None:
    """S119"""
    model = Mlp()
    other = nn.Parameter(torch.zeros(1))
    groups: list[dict[str, Any]] = [{"params": [other]}, {"params": list(model.parameters()), "lr": 0.5}]
    optimizer = Adam(groups)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    steps = {id(parameter): state["exp_avg"] for parameter, state in optimizer.state.items()}
    new_of = moved(model)
    rebind(optimizer, new_of)
    assert optimizer.param_groups[0]["params"] == [other]
    assert optimizer.param_groups[1]["lr"] == 0.5
    assert {id(parameter) for parameter in optimizer.state} == {id(parameter) for parameter in model.parameters()}
    for old, new in new_of.items():
        assert optimizer.state[new]["exp_avg"] is steps[id(old)]


CPU = torch.device("cpu")


def left_behind(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that the model had on another device, before it was moved to the CPU."""
    model.to("meta")
    before = list(model.parameters())
    model.to_empty(device=CPU)
    return before


def test_an_optimizer_that_was_left_behind_is_refused_with_what_to_do() -> None:
    """S21: created before the model was moved by hand."""
    models = [nn.Linear(3, 3), Mlp()]
    fresh, stale = SGD(models[0].parameters()), Adam(left_behind(models[1]))
    with pytest.raises(StaleParameters) as error:
        refuse_stale([fresh, stale], models, CPU)
    assert str(error.value) == (
        "optimizer 1 (Adam) holds 4 parameters that none of the models has any more: they were replaced when the model"
        " was moved to its device. Create the optimizer after model.to(accelerator.device), or leave the moving to"
        " prepare (device_placement=True)"
    )
    assert isinstance(error.value, AccelError)
    assert isinstance(error.value, ValueError)


def test_groups_in_another_order_do_not_hide_it() -> None:
    """S21"""
    model = Mlp()
    held = left_behind(model)
    with pytest.raises(StaleParameters):
        refuse_stale([SGD([{"params": held[1::2]}, {"params": held[::2]}])], [model], CPU)


def test_an_optimizer_created_after_the_move_is_taken() -> None:
    """S21"""
    model = Mlp()
    left_behind(model)
    refuse_stale([SGD(model.parameters())], [model], CPU)


def test_an_optimizer_that_was_rebound_is_taken() -> None:
    model = Mlp()
    optimizer = SGD(left_behind(model))
    rebind(optimizer, replaced(optimizer.param_groups[0]["params"], model.parameters()))
    refuse_stale([optimizer], [model], CPU)


def test_an_optimizer_of_something_else_is_taken() -> None:
    """S34, S35: one that trains another model, even of the same shapes, or a tensor of its own."""
    model, twin = Mlp(), Mlp()
    refuse_stale([SGD(twin.parameters())], [model], CPU)
    refuse_stale([SGD([nn.Parameter(torch.zeros(17, device="meta"))])], [model], CPU)
    like_a_bias = nn.Parameter(torch.zeros_like(model.first.bias, device="meta"))
    refuse_stale([SGD([like_a_bias])], [model], CPU)
    refuse_stale([SGD([like_a_bias, *model.parameters()])], [model], CPU)
    refuse_stale([SGD(model.parameters())], [], CPU)


def test_an_optimizer_that_did_not_follow_is_refused_at_its_next_step() -> None:
    """S46: it was not prepared. Also if it has made steps since another model was moved."""
    first, second = Mlp(), Mlp()
    forgotten, followed = SGD(second.parameters(), lr=0.1), SGD(first.parameters(), lr=0.1)
    for model, optimizers in ((first, [followed]), (second, [])):
        names = list(model.named_parameters())
        model.double()
        follow(model, names, optimizers)
        followed.step()
        if model is first:
            forgotten.step()
    with pytest.raises(
        RuntimeError, match=r"this SGD is not prepared, and holds \d parameters that prepare has replaced"
    ):
        forgotten.step()
