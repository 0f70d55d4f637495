"""A3: in fp16 exactly the steps that overflowed are skipped, on all processes, and the scale follows."""

import io
from typing import Any

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel_testing import MakePool, assert_same_numbers
from small_steps import copied
from suite.toy_models import Mlp
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR

Trace = dict[str, list[Any]]

STEPS, BATCH = 10, 4
INIT, INTERVAL = 1024.0, 2
OVERFLOWS = (1, 4, 5)
# halved at each of them, doubled after two steps that went well
SCALES = [1024.0, 512.0, 512.0, 1024.0, 512.0, 256.0, 256.0, 512.0, 512.0, 1024.0]


def batch(step: int, part: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + part)
    return torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 4, generator=generator)


def rate(step: int) -> float:
    return 1 / (1 + step)


def plain(ranks: int, every: int, overflows: tuple[int, ...]) -> Trace:
    """Hand-written PyTorch: the micro-batches of all ranks one after another, the first of a chosen step infinite."""
    model = Mlp()
    optimizer = AdamW(model.parameters(), lr=0.05)
    schedule = LambdaLR(optimizer, rate)
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT, growth_interval=INTERVAL)
    trace: Trace = {"skipped": [], "scales": [], "rates": [], "norms": [], "weights": []}
    for step in range(STEPS):
        for part in range(every * ranks):
            inputs, targets = batch(step, part)
            with torch.autocast("cpu", dtype=torch.float16):
                outputs = model(inputs)
            loss = nn.functional.mse_loss(outputs.float(), targets) / every
            if step in overflows and part == 0:
                loss = loss * float("inf")
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call] # of torch
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= ranks
        scaler.unscale_(optimizer)
        trace["norms"].append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        trace["skipped"].append(scaler.get_scale() < before)
        if not trace["skipped"][-1]:
            schedule.step()
        optimizer.zero_grad()
        trace["scales"].append(scaler.get_scale())
        trace["rates"].append(schedule.get_last_lr()[0])
        trace["weights"].append(copied(model))
    return trace


class Training:
    """An fp16 loop over chosen steps, which can be saved and gone on with."""

    def __init__(self, every: int = 1) -> None:
        self.accelerator = Accelerator(
            cpu=True,
            mixed_precision="fp16",
            gradient_accumulation_steps=every,
            scheduler_once_per_step=True,
            kwargs_handlers=[GradScalerKwargs(init_scale=INIT, growth_interval=INTERVAL)],
        )
        model = Mlp()
        optimizer = AdamW(model.parameters(), lr=0.05)
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(
            model, optimizer, LambdaLR(optimizer, rate)
        )
        self.trace: Trace = {"skipped": [], "scales": [], "rates": [], "norms": [], "weights": []}
        self.saved: list[bytes] = []

    def train(self, steps: range, overflows: tuple[int, ...], ranks: tuple[int, ...], *, look: bool = True) -> None:
        accelerator, trace = self.accelerator, self.trace
        every, size, rank = (
            accelerator.gradient_accumulation_steps,
            accelerator.num_processes,
            accelerator.process_index,
        )
        for step in steps:
            for micro in range(every):
                inputs, targets = batch(step, micro * size + rank)
                with accelerator.accumulate(self.model):
                    loss = nn.functional.mse_loss(self.model(inputs), targets)
                    if step in overflows and micro == 0 and rank in ranks:
                        loss = loss * float("inf")
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.unscale_gradients()
                    norm = accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                    self.optimizer.step()
                    self.schedule.step()
                    self.optimizer.zero_grad()
            if not look:
                continue
            # before anybody asks for the scale
            self.saved.append(self.state())
            trace["skipped"].append(accelerator.optimizer_step_was_skipped)
            assert accelerator.scaler is not None
            trace["scales"].append(accelerator.scaler.get_scale())
            trace["rates"].append(self.schedule.get_last_lr()[0])
            trace["norms"].append(float(norm))
            trace["weights"].append(copied(accelerator.unwrap_model(self.model)))

    def parts(self) -> list[Any]:
        return [self.accelerator.unwrap_model(self.model), self.optimizer, self.schedule, self.accelerator.scaler]

    def state(self) -> bytes:
        file = io.BytesIO()
        torch.save([one.state_dict() for one in self.parts()], file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        for one, state in zip(self.parts(), torch.load(io.BytesIO(saved)), strict=True):
            one.load_state_dict(state)


def overflowing(every: int, ranks: tuple[int, ...]) -> Trace:
    training = Training(every)
    training.train(range(STEPS), OVERFLOWS, ranks)
    return training.trace


@pytest.mark.grid(2)
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize(("size", "ranks"), [(1, (0,)), (2, (0,)), (2, (1,)), (2, (0, 1))])
def test_exactly_the_steps_that_overflowed_are_skipped(
    world: MakePool, size: int, ranks: tuple[int, ...], every: int
) -> None:
    """A3: on both processes although one overflows, and although it is the first of four micro-batches."""
    expected = plain(size, every, OVERFLOWS)
    assert expected["skipped"] == [step in OVERFLOWS for step in range(STEPS)]
    assert expected["scales"] == SCALES
    traces = world(size).run(overflowing, every, ranks)
    for found in traces:
        assert found["skipped"] == expected["skipped"]
        assert found["scales"] == SCALES
        assert found["rates"] == expected["rates"], "a prepared schedule holds still after a step that was skipped"
        assert_same_numbers(found["weights"], expected["weights"], atol=1e-6)
        assert_same_numbers(found["weights"], traces[0]["weights"], atol=0)
        for step in OVERFLOWS:
            assert_same_numbers(found["weights"][step], found["weights"][step - 1], atol=0)


@pytest.mark.parametrize("size", [1, 2])
def test_the_norm_is_that_of_the_unscaled_gradients(world: MakePool, size: int) -> None:
    """S73: torch's, within 1e-6, and the same number on both processes; no number where the step overflowed."""
    expected = plain(size, 4, OVERFLOWS)["norms"]
    for found in world(size).run(overflowing, 4, (size - 1,)):
        for step, (norm, torchs) in enumerate(zip(found["norms"], expected, strict=True)):
            assert (norm == norm and norm < float("inf")) == (step not in OVERFLOWS)
            if step not in OVERFLOWS:
                assert norm == pytest.approx(torchs, rel=1e-6)


def test_both_processes_are_told_the_same_norm(world: MakePool) -> None:
    one, other = world(2).run(overflowing, 1, (1,))
    finite = [step for step in range(STEPS) if step not in OVERFLOWS]
    assert [one["norms"][step] for step in finite] == [other["norms"][step] for step in finite]


def resumed(every: int) -> tuple[Trace, list[Trace]]:
    unbroken = Training(every)
    unbroken.train(range(STEPS), OVERFLOWS, (0,))
    later = []
    for step, state in enumerate(unbroken.saved[:-1]):
        training = Training(every)
        # what is not saved must not matter: this one begins with an overflow of its own
        training.train(range(1), (0,), (0,), look=False)
        training.load(state)
        training.train(range(step + 1, STEPS), OVERFLOWS, (0,))
        later.append(training.trace)
    return unbroken.trace, later


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("every", [1, 4])
def test_a_resumed_run_goes_on_with_the_same_scale(world: MakePool, size: int, every: int) -> None:
    """A3: from any step, also one that was skipped: scale, rates and weights bit by bit those of the unbroken run."""
    for unbroken, later in world(size).run(resumed, every):
        assert unbroken["scales"] == SCALES
        for step, trace in enumerate(later):
            # the norm of a step that overflowed is no number, and equals nothing
            for name in ("skipped", "scales", "rates", "weights"):
                assert_same_numbers(trace[name], unbroken[name][step + 1 :], atol=0)


def two_plain(ranks: int) -> tuple[list[float], list[Any], list[list[float]]]:
    models = Mlp(seed=0), Mlp(seed=1)
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    schedules = [LambdaLR(optimizer, rate) for optimizer in optimizers]
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT, growth_interval=INTERVAL)
    scales, weights, rates = [], [], []
    for step in range(6):
        for part in range(ranks):
            inputs, targets = batch(step, part)
            for number, model in enumerate(models):
                with torch.autocast("cpu", dtype=torch.float16):
                    outputs = model(inputs)
                loss = nn.functional.mse_loss(outputs.float(), targets)
                factor = float("inf") if number == 1 and step in (1, 2) and part == 0 else 1.0
                scaler.scale(loss * factor).backward()  # type: ignore[no-untyped-call] # of torch
        for model, optimizer, schedule, infinite in zip(models, optimizers, schedules, (False, True), strict=True):
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= ranks
            scaler.step(optimizer)
            if not (infinite and step in (1, 2)):
                schedule.step()
            optimizer.zero_grad()
        scaler.update()
        scales.append(scaler.get_scale())
        weights.append([copied(model) for model in models])
        rates.append([float(schedule.get_last_lr()[0]) for schedule in schedules])
    return scales, weights, rates


def two_prepared() -> tuple[list[float], list[Any], list[list[float]], list[list[bool]]]:
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp16",
        scheduler_once_per_step=True,
        kwargs_handlers=[GradScalerKwargs(init_scale=INIT, growth_interval=INTERVAL)],
    )
    models: list[nn.Module] = [Mlp(seed=0), Mlp(seed=1)]
    optimizers: list[Any] = [SGD(model.parameters(), lr=0.1) for model in models]
    schedules: list[Any] = [LambdaLR(optimizer, rate) for optimizer in optimizers]
    models = [accelerator.prepare(model) for model in models]
    optimizers = [accelerator.prepare(optimizer) for optimizer in optimizers]
    schedules = [accelerator.prepare(schedule) for schedule in schedules]
    scales, weights, rates, skipped = [], [], [], []
    for step in range(6):
        inputs, targets = batch(step, accelerator.process_index)
        for number, model in enumerate(models):
            loss = nn.functional.mse_loss(model(inputs), targets)
            bad = number == 1 and step in (1, 2) and accelerator.is_main_process
            accelerator.backward(loss * (float("inf") if bad else 1.0))
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        assert accelerator.scaler is not None
        scales.append(accelerator.scaler.get_scale())
        weights.append([copied(accelerator.unwrap_model(model)) for model in models])
        rates.append([float(schedule.get_last_lr()[0]) for schedule in schedules])
        skipped.append(
            [accelerator.optimizer_step_was_skipped, *(bool(optimizer.step_was_skipped) for optimizer in optimizers)]
        )
    return scales, weights, rates, skipped


@pytest.mark.parametrize("size", [1, 2])
def test_of_two_optimizers_the_one_that_overflowed_is_skipped(world: MakePool, size: int) -> None:
    """S74: the other one steps, and the scale, which they share, halves once."""
    expected = two_plain(size)
    assert expected[0] == [1024.0, 512.0, 256.0, 256.0, 512.0, 512.0]
    for scales, weights, rates, skipped in world(size).run(two_prepared):
        assert scales == expected[0]
        assert_same_numbers(weights, expected[1], atol=1e-6)
        assert rates == expected[2]
        assert skipped == [[False] * 3, [True, False, True], [True, False, True], *([[False] * 3] * 3)]


def left_out(clip_first: bool) -> tuple[dict[str, Tensor], float]:
    training = Training(every=2)
    accelerator = training.accelerator
    for step in range(3):
        for micro in range(2):
            inputs, targets = batch(step, micro * accelerator.num_processes + accelerator.process_index)
            with accelerator.accumulate(training.model):
                accelerator.backward(nn.functional.mse_loss(training.model(inputs), targets))
                if accelerator.sync_gradients and clip_first:
                    accelerator.clip_grad_norm_(training.model.parameters(), 100.0)
                if step != 1:
                    training.optimizer.step()
                training.optimizer.zero_grad()
    assert accelerator.scaler is not None
    return copied(accelerator.unwrap_model(training.model)), accelerator.scaler.get_scale()


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_that_were_unscaled_and_thrown_away_are_forgotten(world: MakePool, size: int) -> None:
    """S74: a loop that clips and then makes no step goes on as one that neither clips nor steps."""
    running = world(size)
    for (clipped, scale), (plainly, _) in zip(running.run(left_out, True), running.run(left_out, False), strict=True):
        assert_same_numbers(clipped, plainly, atol=1e-6)
        assert scale in (1024.0, 2048.0)


def tiny_and_large() -> tuple[bool, float]:
    """A gradient of one part in 10 million vanishes in float16 unless its loss is scaled."""
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(1, 1)).sum() * 1e-8)
    accelerator.unscale_gradients()
    gradient = accelerator.unwrap_model(model).weight.grad
    optimizer.step()
    return accelerator.optimizer_step_was_skipped, float(gradient)


@pytest.mark.parametrize("size", [1, 2])
def test_small_gradients_survive(world: MakePool, size: int) -> None:
    """S69."""
    for skipped, gradient in world(size).run(tiny_and_large):
        assert not skipped
        assert gradient == pytest.approx(1e-8, rel=1e-2)
