"""fp16 with several optimizers: one scale for a window, and each optimizer unscaled by itself."""

import pytest
import torch
from accel import Accelerator, DistributedDataParallelKwargs, GradScalerKwargs, LocalSGD
from accel_amp import LossScaler
from accel_testing import MakePool
from small_steps import line
from torch import nn
from torch.optim import SGD


def two(every: int, **settings: float) -> tuple[Accelerator, list[nn.Module], list[SGD]]:
    handlers = [GradScalerKwargs(init_scale=1024.0, **settings)]  # type: ignore[arg-type] # settings of any type
    accelerator = Accelerator(
        cpu=True, mixed_precision="fp16", gradient_accumulation_steps=every, kwargs_handlers=handlers
    )
    models: list[nn.Module] = [line(), line()]
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models]
    ready = [accelerator.prepare(one) for one in (*models, *optimizers)]
    return accelerator, ready[:2], ready[2:]  # type: ignore[return-value] # a slice of what prepare returns


def in_turns(overflow: bool) -> tuple[float, float, float]:
    """A GAN-like loop: the first model's step comes before the second's backward."""
    accelerator, (one, other), (first, second) = two(2, growth_interval=1)
    x = torch.ones(1, 1)
    for micro in range(2):
        with accelerator.accumulate(one, other):
            accelerator.backward(one(x).sum() * (float("inf") if overflow and micro else 1))
            first.step()
            first.zero_grad()
            accelerator.backward(other(x).sum())
            second.step()
            second.zero_grad()
    assert accelerator.scaler is not None
    weights = [next(accelerator.unwrap_model(model).parameters()).item() for model in (one, other)]
    return weights[0], weights[1], accelerator.scaler.get_scale()


@pytest.mark.parametrize("size", [1, 2])
def test_the_scale_of_a_window_is_that_of_all_its_gradients(world: MakePool, size: int) -> None:
    """A3: it neither falls nor grows between two optimizers of one window."""
    assert world(size).run(in_turns, False) == [(0.0, 0.0, 2048.0)] * size
    assert world(size).run(in_turns, True) == [(1.0, 0.0, 512.0)] * size


def clipped(every: int) -> tuple[list[float], list[float]]:
    accelerator, models, optimizers = two(every)
    norms = []
    for _ in range(every):
        with accelerator.accumulate(*models):
            if not accelerator.sync_gradients:
                accelerator.unscale_gradients()  # does nothing within a window
            for model in models:
                accelerator.backward(model(torch.ones(1, 1)).sum())
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 10.0).item())
            for optimizer in optimizers:
                optimizer.step()
                assert accelerator.scaler is not None
                assert accelerator.scaler.get_scale() == 1024.0
                optimizer.zero_grad()
    return norms[-2:], [next(accelerator.unwrap_model(model).parameters()).item() for model in models]


@pytest.mark.parametrize("every", [2, 3])
def test_clipping_one_model_leaves_the_gradients_of_another_scaled(world: MakePool, every: int) -> None:
    """S73, A3."""
    for norms, weights in world(2).run(clipped, every):
        assert norms == pytest.approx([1.0, 1.0], rel=1e-3)
        assert weights == pytest.approx([0.0, 0.0], abs=1e-3)


def clipped_together(bad: float) -> tuple[list[float], list[bool]]:
    """One norm over both models, of which one has a gradient that is not finite."""
    accelerator, models, optimizers = two(1)
    skipped = []
    for step in range(3):
        for model, factor in zip(models, (bad if step == 1 else 1.0, 1.0), strict=True):
            accelerator.backward(model(torch.ones(1, 1)).sum() * factor)
        accelerator.clip_grad_norm_([parameter for model in models for parameter in model.parameters()], 10.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        skipped.append(accelerator.optimizer_step_was_skipped)
    return [next(accelerator.unwrap_model(model).parameters()).item() for model in models], skipped


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_optimizers_that_share_a_norm_share_an_overflow(world: MakePool, size: int, bad: float) -> None:
    """S73: the norm would make the other's gradients NaN after they were looked at."""
    for weights, skipped in world(size).run(clipped_together, bad):
        assert weights == pytest.approx([-1.0, -1.0], abs=1e-2)
        assert skipped == [False, True, False]


def failed() -> list[float]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = line()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=1.0))
    gradients = []
    for micro in range(6):
        try:
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                if micro == 1:
                    raise ArithmeticError("this batch cannot be learnt from")
                if accelerator.sync_gradients:
                    gradients += [one.grad.item() for one in model.parameters() if one.grad is not None]
                optimizer.step()
                optimizer.zero_grad()
        except ArithmeticError:
            continue
    return gradients


@pytest.mark.parametrize("size", [1, 2])
def test_a_micro_batch_that_fails_takes_its_window_with_it(world: MakePool, size: int) -> None:
    assert world(size).run(failed) == [[1.0, 1.0]] * size


def static() -> str:
    handler = DistributedDataParallelKwargs(static_graph=True)
    with pytest.raises(ValueError, match="leave static_graph out") as refusal:
        Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[handler])
    return str(refusal.value)


def test_a_static_graph_and_accumulation_are_refused_together(world: MakePool) -> None:
    world(1).run(static)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(inputs)
        return output


def locally() -> tuple[float, float]:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=1024.0)])
    model = Normalised()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    rank = accelerator.process_index
    with LocalSGD(accelerator, model, 100) as local:
        loss = model(torch.tensor([[1.0 + rank], [3.0 + rank]])).sum()
        accelerator.backward(loss * (float("inf") if rank else 1))
        optimizer.step()
        local.step()
        optimizer.zero_grad()
    assert accelerator.scaler is not None
    return accelerator.unwrap_model(model).norm.running_mean.item(), accelerator.scaler.get_scale()


def test_local_steps_end_with_one_scale_and_the_mean_of_buffers(world: MakePool) -> None:
    """The running mean of one process is 0.2 and of the other 0.3; one of them had an overflow."""
    for mean, scale in world(2).run(locally):
        assert mean == pytest.approx(0.25)
        assert scale == 1024.0


def test_an_optimizer_that_is_gone_leaves_nothing_to_one_with_its_id() -> None:
    scaler, parameter = LossScaler("cpu", init_scale=8.0), nn.Parameter(torch.ones(1))
    optimizer = SGD([parameter], lr=1.0)
    for released in (True, False):
        parameter.grad = None
        scaler.scale(parameter.sum()).backward()  # type: ignore[no-untyped-call] # of torch
        scaler.unscale(optimizer)
        assert parameter.grad is not None
        assert parameter.grad.item() == 1.0
        if released:
            scaler.release()
