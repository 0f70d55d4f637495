"""The scale of the loss: when it changes, and which steps it prevents."""

import pytest
import torch
from accel_amp import LossScaler
from accel_testing import assert_same_numbers
from suite.toy_models import Regression
from torch import nn
from torch.optim import SGD, AdamW


def one(value: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.tensor([value]))


def scaler(scale: float = 8.0) -> LossScaler:
    return LossScaler("cpu", init_scale=scale, growth_interval=1000)


def grads(parameter: nn.Parameter, value: float) -> None:
    parameter.grad = torch.full_like(parameter, value)


def test_a_scaled_step_is_a_plain_step() -> None:
    """S67, S74"""
    plain, scaled = Regression(1, 2), Regression(1, 2)
    x = torch.tensor([0.5, -1.0])
    for model, scale in ((plain, None), (scaled, scaler())):
        optimizer = SGD(model.parameters(), lr=0.1)
        loss = model(x).square().sum()
        (loss if scale is None else scale.scale(loss)).backward()
        if scale is None:
            optimizer.step()
        else:
            assert scale.step(optimizer)
    assert_same_numbers(scaled.state_dict(), plain.state_dict(), atol=1e-6)


def test_the_loss_is_multiplied_by_the_scale() -> None:
    assert scaler(8.0).scale(torch.tensor(0.5)).item() == 4.0


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_step_with_overflown_gradients_is_skipped_and_the_scale_halved(bad: float) -> None:
    """S67, S70"""
    scale, parameter = scaler(8.0), one()
    optimizer = SGD([parameter], lr=1.0)
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    grads(parameter, bad)
    assert scale.step(optimizer) is False
    assert parameter.item() == 1.0
    assert scale.get_scale() == 4.0


def test_the_scale_changes_between_steps_and_not_between_optimizers() -> None:
    scale, first, second = scaler(8.0), one(), one()
    optimizers = [SGD([first], lr=1.0), SGD([second], lr=1.0)]
    scale.scale(first.sum() + second.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    grads(first, float("inf"))
    assert [scale.step(optimizer) for optimizer in optimizers] == [False, True]
    # the second one was unscaled by 8, not by the 4 that follows
    assert second.item() == 0.0
    assert scale.scale(torch.tensor(1.0)).item() == 4.0
    assert scale.get_scale() == 4.0


def test_gradients_are_unscaled_once_a_step_however_often_it_is_asked() -> None:
    """S73"""
    scale, parameter = scaler(8.0), one()
    optimizer = SGD([parameter], lr=1.0)
    for _ in range(2):
        parameter.grad = None
        scale.scale(2 * parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
        assert parameter.grad is not None
        for _ in range(2):
            scale.unscale(optimizer)
            assert parameter.grad.item() == 2.0
        assert scale.step(optimizer)
    assert parameter.item() == -3.0


def test_steps_that_one_norm_has_mixed_are_skipped_together() -> None:
    first, other, third = one(), one(), one()
    optimizers = [SGD([parameter], lr=1.0) for parameter in (first, other, third)]
    scale = scaler(8.0)
    for parameter, value in ((first, float("nan")), (other, 8.0), (third, 8.0)):
        grads(parameter, value)
    for optimizer in optimizers:
        scale.scale(torch.ones(()))
        scale.unscale(optimizer)
    scale.share_overflow(optimizers[:2])
    assert [scale.step(optimizer) for optimizer in optimizers] == [False, False, True]
    assert (first.item(), other.item(), third.item()) == (1.0, 1.0, 0.0)


def test_gradients_unscaled_for_no_step_do_not_stop_the_next_step() -> None:
    scale, first, second = scaler(8.0), one(), one()
    optimizers = [SGD([first], lr=1.0), SGD([second], lr=1.0)]
    for _ in range(2):
        first.grad = second.grad = None
        scale.scale(first.sum() + second.sum()).backward()  # type: ignore[no-untyped-call] # of torch
        scale.unscale(optimizers[0])
        assert scale.step(optimizers[1])
    assert first.grad is not None
    assert first.grad.item() == 1.0


def test_a_closure_is_refused_with_what_to_use() -> None:
    with pytest.raises(ValueError, match=r"fp16 cannot step with a closure: .* use bf16 or no"):
        scaler().step(SGD([one()]), lambda: torch.tensor(0.0))


def test_a_state_continues_where_it_was_taken() -> None:
    scale, parameter = scaler(8.0), one()
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    grads(parameter, float("inf"))
    scale.step(SGD([parameter]))
    other = scaler(1024.0)
    other.load_state_dict(scale.state_dict())
    assert other.get_scale() == 4.0


def test_a_state_can_be_loaded_between_two_steps() -> None:
    """S92: the overflow of the step before is not held against the scale that is loaded."""
    scale, parameter = scaler(8.0), one()
    optimizer = SGD([parameter], lr=1.0)
    saved = scaler(1024.0).state_dict()
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    grads(parameter, float("inf"))
    assert not scale.step(optimizer)
    scale.load_state_dict(saved)
    assert scale.get_scale() == 1024.0
    optimizer.zero_grad()
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    assert scale.step(optimizer)
    assert parameter.item() == 0.0


def test_unscaling_after_the_step_is_refused_by_torch() -> None:
    scale, parameter = scaler(), one()
    optimizer = SGD([parameter])
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    scale.unscale(optimizer)
    scale.step(optimizer)
    with pytest.raises(RuntimeError, match="called after step"):
        scale.unscale(optimizer)


def test_the_hook_that_watches_a_step_is_taken_away_again() -> None:
    scale, parameter = scaler(), one()
    optimizer = SGD([parameter])
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    scale.step(optimizer)
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_noticed_in_a_fused_optimizer_too(fused: bool) -> None:
    """S71: a fused optimizer is called all the same, and skips inside its kernel."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer = AdamW([parameter], lr=0.1, fused=fused)
    scaler = LossScaler("cpu", init_scale=8.0)
    made = []
    for factor in (1.0, float("inf"), 1.0):
        before = parameter.detach().clone()
        torch.autograd.backward(scaler.scale((parameter * factor).sum()))
        made.append(bool(scaler.step(optimizer)))
        assert torch.equal(before, parameter) != made[-1]
        optimizer.zero_grad()
    assert made == [True, False, True]


def test_a_step_without_a_scaled_loss_is_refused() -> None:
    """A7: `loss.backward()` that was left in the script."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = SGD([parameter], lr=1.0)
    torch.autograd.backward(parameter.sum())
    with pytest.raises(RuntimeError, match=r"this SGD steps, and no loss was scaled .* not loss.backward\(\)"):
        LossScaler("cpu").step(optimizer)
    assert parameter.item() == 1


def test_a_scaled_number_is_unscaled_without_a_look_at_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of a window the norm of gradients is told at each micro-batch."""
    scale, parameter = scaler(8.0), one()
    assert scale.unscaled(torch.tensor(16.0)).item() == 2.0  # before the first loss
    scale.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
    monkeypatch.setattr(scale.grad_scaler, "get_scale", None)  # waits for the device
    assert scale.unscaled(torch.tensor(16.0)).item() == 2.0
