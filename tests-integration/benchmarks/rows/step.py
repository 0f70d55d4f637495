"""A whole training step of a tiny model: fetch, forward, backward, clip, step, schedule, zero."""

from __future__ import annotations

from functools import partial

from benchmarks.row import Lineup, Row
from benchmarks.steps import light, sharded
from benchmarks.steps.libraries import accel, accelerate, fabric
from benchmarks.steps.raw import by_hand
from benchmarks.steps.task import Task


def _lineup(task: Task) -> Lineup:
    return Lineup.of(
        {
            "raw": partial(by_hand, task),
            "accel": partial(accel, task),
            "accelerate": partial(accelerate, task),
            "fabric": partial(fabric, task),
        }
    )


def _row(name: str, task: Task, target: float) -> Row:
    return Row(f"step, {name}, world {task.world}", partial(_lineup, task), target, world=task.world)


def _light_lineup(world: int) -> Lineup:
    return Lineup.of({"raw": partial(light.by_hand, world), "accel": partial(light.accel, world)})


def _light(world: int) -> Row:
    return Row(f"step, light, world {world}", partial(_light_lineup, world), 1.02, world=world)


def _sharded_lineup() -> Lineup:
    return Lineup.of({"raw": sharded.by_hand, "accel": sharded.accel, "accelerate": sharded.accelerate})


ROWS = (
    _row("fp32", Task(), 1.03),
    _row("accumulation 4", Task(every=4), 1.05),
    _row("bf16", Task(precision="bf16"), 1.05),
    _row("fp32", Task(world=2), 1.03),
    _row("accumulation 4", Task(world=2, every=4), 1.05),
    _row("bf16", Task(world=2, precision="bf16"), 1.05),
    _light(1),
    _light(2),
    Row("step, sharded (fsdp2), world 2", _sharded_lineup, 1.05, world=2),
)
