"""The same loop with accel, Hugging Face Accelerate and Lightning Fabric, each as its documentation writes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from benchmarks.row import Repetition, Skipped
from benchmarks.steps.task import BATCHES, MAX_NORM, Task, loss_of, parts


def accel(task: Task) -> Repetition:
    """accel of this tree."""
    from accel import Accelerator

    return _by_accelerator(Accelerator, task)


def accelerate(task: Task) -> Repetition:
    """Hugging Face Accelerate.

    Raises: Skipped where it is not installed.
    """
    if find_spec("accelerate") is None:
        raise Skipped("pip install accelerate==1.15.0")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()
    return _by_accelerator(Accelerator, task)


def _by_accelerator(make: Callable[..., Any], task: Task) -> Repetition:
    accelerator = make(cpu=True, mixed_precision=task.precision, gradient_accumulation_steps=task.every)
    mine = parts(task.world)
    model, optimizer, scheduler, loader = accelerator.prepare(mine.model, mine.optimizer, mine.scheduler, mine.loader)
    parameters = list(model.parameters())

    def plain() -> None:
        for batch in loader:
            accelerator.backward(loss_of(model, batch))
            accelerator.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    def accumulating() -> None:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    return _timed(plain if task.every == 1 else accumulating)


def fabric(task: Task) -> Repetition:
    """Lightning Fabric.

    Raises: Skipped where it is not installed.
    """
    if find_spec("lightning") is None:
        raise Skipped("pip install lightning==2.6.6")
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    precision: Any = "bf16-mixed" if task.precision == "bf16" else "32-true"
    several: dict[str, Any] = {"devices": task.world}
    if task.world > 1:
        several |= {"strategy": "ddp", "plugins": [TorchElasticEnvironment()]}
    runner = Fabric(accelerator="cpu", precision=precision, **several)
    runner.launch()
    mine = parts(task.world)
    wrapped: Any = runner.setup(mine.model, mine.optimizer)
    model, optimizer = wrapped
    loader: Any = runner.setup_dataloaders(mine.loader)
    scheduler, every = mine.scheduler, task.every

    def loop() -> None:
        for number, batch in enumerate(loader, start=1):
            due = number % every == 0
            home: AbstractContextManager[Any] = (
                runner.no_backward_sync(model, enabled=not due) if every > 1 else nullcontext()
            )
            with home:
                loss = loss_of(model, batch)
                runner.backward(loss / every if every > 1 else loss)
            if due:
                runner.clip_gradients(model, optimizer, max_norm=MAX_NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    return _timed(loop)


def _timed(loop: Callable[[], None]) -> Repetition:
    def repeat() -> float:
        began = perf_counter()
        loop()
        return (perf_counter() - began) / BATCHES

    return repeat
