"""T8: the learning rate at an optimizer step is the same on any number of processes, with any accumulation."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from accel import Accelerator, GradScalerKwargs
from accel_testing import MakePool, RankFailure
from suite.soak import in_soak
from torch import nn
from torch.optim import SGD
from torch.optim import lr_scheduler as schedulers

STEPS, TOTAL = 9, 14
LOSSES = [3.0, 2.0, 2.5, 2.6, 2.7, 1.0, 1.5, 1.6, 1.7]
MAKERS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "step": lambda optimizer: schedulers.StepLR(optimizer, step_size=2, gamma=0.5),
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, T_max=TOTAL),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(optimizer, max_lr=2.0, total_steps=TOTAL),
    "sequential": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1, total_iters=4), schedulers.ExponentialLR(optimizer, 0.8)],
        milestones=[4],
    ),
    "exponential": lambda optimizer: schedulers.ExponentialLR(optimizer, gamma=0.9),
    "cyclic": lambda optimizer: schedulers.CyclicLR(optimizer, base_lr=0.1, max_lr=1.0, step_size_up=3),
    "plateau": lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
}
COUNTING = [name for name in MAKERS if name != "plateau"]


def rates_of(optimizer: Any) -> float:
    return float(optimizer.param_groups[0]["lr"])


def plain(name: str, calls: int) -> list[float]:
    """The rate before any call of torch's scheduler, and after each; a cycle stays at the last rate of its curve."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = SGD([parameter], lr=1.0, momentum=0.9)
    with warnings.catch_warnings():
        # SequentialLR calls its parts with the epoch that torch has deprecated
        warnings.simplefilter("ignore", UserWarning)
        schedule = MAKERS[name](optimizer)
        rates = [rates_of(optimizer)]
        for number in range(calls):
            optimizer.step()
            if name == "plateau":
                schedule.step(LOSSES[number])
            elif name != "one cycle" or number < TOTAL - 1:
                schedule.step()
            rates.append(rates_of(optimizer))
    return rates


class Loop:
    """A loop with a prepared schedule, made before or after its optimizer was prepared."""

    def __init__(self, name: str, every: int, *, late: bool = False, **settings: Any) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every, **settings)
        self.name = name
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
        if late:
            self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
            self.schedule = self.accelerator.prepare(MAKERS[name](self.optimizer))
        else:
            self.model, self.optimizer, self.schedule = self.accelerator.prepare(
                model, optimizer, MAKERS[name](optimizer)
            )

    def train(self, steps: Iterable[int]) -> list[float]:
        """The rate after each optimizer step; a plateau is told of the loss once a step."""
        rates = []
        for step in steps:
            for _ in range(self.accelerator.gradient_accumulation_steps):
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(self.model(torch.ones(2, 2)).mean() * 1e-3)
                    self.optimizer.step()
                    if self.name != "plateau":
                        self.schedule.step()
                    elif self.accelerator.sync_gradients:
                        self.schedule.step(LOSSES[step])
                    self.optimizer.zero_grad()
            rates.append(rates_of(self.optimizer))
            if self.name != "plateau":
                assert self.schedule.get_last_lr() == [rates[-1]]
        return rates


def once_per_step(every: int) -> dict[str, list[list[float]]]:
    return {
        name: [
            Loop(name, every, scheduler_once_per_step=True).train(range(STEPS)),
            Loop(name, every, split_batches=True).train(range(STEPS)),
            Loop(name, every, scheduler_once_per_step=True, late=True).train(range(STEPS)),
        ]
        for name in MAKERS
    }


@pytest.mark.parametrize("size", [1, 2, *in_soak(4)])
def test_the_rate_at_a_step_is_the_same_on_any_number_of_processes(world: MakePool, size: int) -> None:
    """T8, decision 11: with scheduler_once_per_step, and with split_batches, one optimizer step is one call."""
    expected = {name: [plain(name, STEPS)[1:]] * 3 for name in MAKERS}
    running = world(size)
    for every in (1, 4):
        assert running.run(once_per_step, every) == [expected] * size


def test_the_schedules_change_the_rate() -> None:
    for name in MAKERS:
        assert len(set(plain(name, STEPS))) > 2


def by_default(every: int) -> dict[str, list[list[float]]]:
    return {
        name: [Loop(name, every).train(range(STEPS)), Loop(name, every, late=True).train(range(STEPS))]
        for name in MAKERS
    }


@pytest.mark.parametrize("size", [1, 2, *in_soak(4)])
def test_by_default_the_rate_is_that_of_all_processes_steps(world: MakePool, size: int) -> None:
    """T8, decision 11: after step k of N processes the plain schedule after k x N; not beyond the end of a cycle."""
    expected = {name: [plain(name, STEPS * size)[size::size]] * 2 for name in COUNTING}
    expected["plateau"] = [plain("plateau", STEPS)[1:]] * 2
    running = world(size)
    for every in (1, 4):
        assert running.run(by_default, every) == [expected] * size


def in_every_call(every: int) -> dict[str, list[float]]:
    rates = {}
    for name in MAKERS:
        loop = Loop(name, every, step_scheduler_with_optimizer=False)
        # a cycle refuses more calls than it was made for
        rates[name] = loop.train(range(min(STEPS, TOTAL // every)))
    return rates


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("size", [1, 2])
def test_without_the_optimizer_each_call_is_a_step(world: MakePool, size: int, every: int) -> None:
    """S61: step_scheduler_with_optimizer=False leaves the scheduler to the loop."""
    steps = min(STEPS, TOTAL // every)
    expected = {name: plain(name, steps * every)[every::every] for name in COUNTING}
    expected["plateau"] = plain("plateau", steps)[1:]
    for found in world(size).run(in_every_call, every):
        assert found == expected


def in_fp16(with_optimizer: bool) -> list[float]:
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp16",
        scheduler_once_per_step=True,
        step_scheduler_with_optimizer=with_optimizer,
        kwargs_handlers=[GradScalerKwargs(init_scale=64.0)],
    )
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=1.0)
    schedule = MAKERS["lambda"](optimizer)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    rates = []
    for step in range(4):
        bad = step in (1, 2) and accelerator.is_last_process
        accelerator.backward(model(torch.ones(2, 2)).mean() * (float("nan") if bad else 1e-3))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        rates.append(rates_of(optimizer))
    return rates


@pytest.mark.parametrize("size", [1, 2])
def test_a_schedule_waits_after_a_skipped_step_unless_it_is_the_loops(world: MakePool, size: int) -> None:
    """T8: skipped steps do not advance it; a schedule that does not follow the optimizer advances all the same."""
    running = world(size)
    assert running.run(in_fp16, True) == [[1 / 2, 1 / 2, 1 / 2, 1 / 3]] * size
    assert running.run(in_fp16, False) == [[1 / 2, 1 / 3, 1 / 4, 1 / 5]] * size


def resumed(every: int, once: bool) -> dict[str, list[list[float]]]:
    found = {}
    for name in MAKERS:
        first = Loop(name, every, scheduler_once_per_step=once)
        before = first.train(range(4))
        states = first.optimizer.state_dict(), first.schedule.state_dict()
        second = Loop(name, every, scheduler_once_per_step=once)
        second.optimizer.load_state_dict(states[0])
        second.schedule.load_state_dict(states[1])
        found[name] = [before + first.train(range(4, STEPS)), before + second.train(range(4, STEPS))]
    return found


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(("size", "every"), [(1, 1), (2, 1), (2, 4)])
def test_a_resumed_schedule_goes_on(world: MakePool, size: int, every: int, once: bool) -> None:
    """T8: after load_state_dict the rates are those of the unbroken run."""
    counted = 1 if once else size
    for found in world(size).run(resumed, every, once):
        for name, (unbroken, again) in found.items():
            calls = 1 if name == "plateau" else counted
            assert unbroken == again == plain(name, STEPS * calls)[calls::calls], name


def plateau(every: int, settings: dict[str, Any]) -> list[float]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every, **settings)
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=1.0)
    schedule = MAKERS["plateau"](optimizer)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    with accelerator.accumulate(model):  # in the middle of a window, where others hold still
        accelerator.backward(model(torch.ones(2, 2)).mean())
    rates = []
    for loss in LOSSES:
        schedule.step(loss)
        rates.append(rates_of(optimizer))
    return rates


def test_a_plateau_is_counted_once_in_each_call(world: MakePool) -> None:
    """T8, decision 11: it counts evaluations, on two processes as on one, whatever the rule is for others."""
    running, expected = world(2), [plain("plateau", len(LOSSES))[1:]] * 2
    for name in ("", "scheduler_once_per_step", "split_batches"):
        for every in (1, 4):
            assert running.run(plateau, every, {name: True} if name else {}) == expected
    assert running.run(plateau, 4, {"step_scheduler_with_optimizer": False}) == expected


def test_a_schedule_without_its_optimizer_is_refused(world: MakePool) -> None:
    """A7."""
    with pytest.raises(RankFailure, match="StepLR belongs to an optimizer that is not prepared; pass the optimizer to"):
        world(1).run(orphan)


def orphan() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(schedulers.StepLR(SGD(nn.Linear(2, 1).parameters(), lr=1.0), step_size=1))


class ScheduleFree(SGD):
    """Has modes, as optimizers that need no schedule do."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.modes: list[str] = []

    def train(self) -> None:
        self.modes.append("train")

    def eval(self) -> None:
        self.modes.append("eval")


def modes() -> tuple[list[str], bool]:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 1)
    inner = ScheduleFree(model.parameters())
    model, optimizer = accelerator.prepare(model, inner)
    plain_model = nn.Linear(2, 1)
    without = accelerator.prepare(SGD(plain_model.parameters(), lr=0.1))
    optimizer.train()
    accelerator.backward(model(torch.ones(2, 2)).mean())
    optimizer.step()
    optimizer.eval()
    getattr(without, "train")()  # noqa: B009 - SGD has no such method, its prepared one has
    getattr(without, "eval")()  # noqa: B009 # mypy knows that it is not there
    return inner.modes, optimizer is not inner


def test_a_schedule_free_optimizer_is_told_its_mode(world: MakePool) -> None:
    """S62: and one that has no modes is left alone."""
    assert world(2).run(modes) == [(["train", "eval"], True)] * 2


def two_schedules() -> list[tuple[float, float]]:
    accelerator = Accelerator(cpu=True)
    models: list[nn.Module] = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers: list[Any] = [SGD(model.parameters(), lr=1.0) for model in models]
    chained = schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(optimizers[0], 0.5), schedulers.ConstantLR(optimizers[0], 0.5, total_iters=2)]
    )
    other = schedulers.StepLR(optimizers[1], step_size=1, gamma=0.1)
    # in an order that does not go by pairs
    ready = accelerator.prepare(other, models[0], optimizers[1], chained, models[1], optimizers[0])
    other, chained, optimizers = ready[0], ready[3], [ready[5], ready[2]]
    rates = []
    for step in range(3):
        accelerator.backward(ready[1](torch.ones(2, 2)).mean() + ready[4](torch.ones(2, 2)).mean())
        for optimizer in optimizers:
            optimizer.step()
        chained.step()
        if step == 1:
            other.step()
        rates.append((round(rates_of(optimizers[0]), 6), round(rates_of(optimizers[1]), 6)))
    return rates


def test_each_schedule_follows_its_own_optimizer(world: MakePool) -> None:
    """S62: several of them, chained ones too, passed in any order."""
    assert world(1).run(two_schedules) == [[(0.25, 1.0), (0.25, 0.1), (0.125, 0.1)]]
