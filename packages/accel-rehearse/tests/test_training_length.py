"""The steps of a training, and whether its schedule ends with them."""

import runpy
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from accel.preparation import _ORIGINALS
from accel_rehearse.training_length import length_of_training
from accel_rehearse.training_loop import end_of, epochs_of
from accel_state import AccumulationState
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader

LINE = "train.py:7"


class Loader(DataLoader[int]):
    total_batch_size = 16


def rehearsed(
    *, length: int, moves: int, every: int = 1, end: str = "flush", batches: int = 65, least: float = inf
) -> Any:
    """Return a rehearsal of 3 epochs on 2 processes, with a schedule that each step moves."""
    samples: Any = range(batches)
    whole, mine = DataLoader[int](samples), Loader(samples[::2])
    _ORIGINALS[mine] = whole
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    return SimpleNamespace(
        training={mine: (3, least, 128)},
        accelerator=SimpleNamespace(gradient_state=AccumulationState(every, at_epoch_end=end)),
        schedules={CosineAnnealingLR(optimizer, length): [0, moves, 2 * moves]},
        lines={"schedule": LINE},
        mistakes=[],
    )


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"length": 99, "moves": 1}, 99),
        ({"length": 198, "moves": 2}, 99),
        ({"length": 197, "moves": 2}, 99),
        ({"length": 3, "moves": 0}, 99),
        ({"length": 27, "moves": 1, "every": 4}, 27),
        ({"length": 24, "moves": 1, "every": 4, "end": "drop"}, 24),
        ({"length": 25, "moves": 1, "every": 4, "end": "carry", "batches": 68}, 25),
    ],
)
def test_a_schedule_that_ends_with_the_training_is_right(given: dict[str, Any], steps: int) -> None:
    rehearsal = rehearsed(**given)
    length = length_of_training(rehearsal)
    assert not rehearsal.mistakes
    assert length["training_steps"] == length["schedule_ends_at_step"] == steps
    samples = 16 * given.get("every", 1)
    assert length["samples_per_step"] == samples
    assert length["tokens_per_step"] == 128 * samples
    assert length["tokens_per_epoch"] == 128 * len(next(iter(rehearsal.training)).dataset)


def test_samples_that_the_loader_drops_have_no_tokens() -> None:
    rehearsal = rehearsed(length=6, moves=1)
    rehearsal.training = {Loader(range(33), batch_size=16, drop_last=True): (3, inf, 128)}  # type: ignore[arg-type]
    assert length_of_training(rehearsal)["tokens_per_epoch"] == 128 * 32


def test_a_schedule_of_one_process_ends_where_it_ends() -> None:
    """It is made as in Accelerate's examples: with 65 batches, two processes make 33 steps, not 32.5."""
    rehearsal = rehearsed(length=3 * 65, moves=2)
    length = length_of_training(rehearsal)
    assert not rehearsal.mistakes
    assert (length["training_steps"], length["schedule_ends_at_step"]) == (99, 98)


@pytest.mark.parametrize(
    ("given", "end", "right"),
    [
        ({"length": 98, "moves": 1}, 98, 99),  # a step off
        ({"length": 100, "moves": 1}, 100, 99),
        ({"length": 96, "moves": 1}, 96, 99),  # a step an epoch off
        ({"length": 3 * 65, "moves": 1}, 195, 99),  # of the loader before it was divided
        ({"length": 99, "moves": 2}, 50, 198),  # of the loader that was divided
        ({"length": 3 * 33 // 4, "moves": 1, "every": 4}, 24, 27),  # rounded once, and not in each epoch
        ({"length": 3 * 65 // 4, "moves": 2, "every": 4}, 24, 54),
        ({"length": 27, "moves": 1, "every": 4, "end": "drop"}, 27, 24),
        ({"length": 2, "moves": 0}, 66, 3),
    ],
)
def test_a_schedule_of_another_length_is_told(given: dict[str, Any], end: int, right: int) -> None:
    rehearsal = rehearsed(**given)
    length_of_training(rehearsal)
    ((what, line, remedy),) = rehearsal.mistakes
    assert what.startswith(f"the schedule ends at step {end}, and training has ")
    assert line == LINE
    assert remedy.startswith(f"make it {right} long")


@pytest.mark.parametrize(
    ("least", "steps", "whole"),
    [
        (10, None, None),  # in the first epoch
        (33, 33, None),
        (98, 33, None),
        (99, 33, 99),  # as the last step of all
        (1000, 33, 99),
    ],
)
def test_a_training_that_breaks_off_has_no_known_end(least: int, steps: int | None, whole: int | None) -> None:
    rehearsal = rehearsed(length=40, moves=1, least=least)
    length = length_of_training(rehearsal)
    assert (length["steps_per_epoch"], length["training_steps"]) == (steps, whole)
    assert length["epochs"] == (3 if whole else None)
    assert length["schedule_ends_at_step"] == 40
    assert len(rehearsal.mistakes) == (1 if whole else 0)


@pytest.mark.parametrize(
    ("least", "steps", "whole"),
    [
        (6, None, None),
        (20, None, None),  # of batches in the first epoch, or of steps in the third
        (21, 7, 21),  # as the last step of all
        (22, None, None),  # of batches in the first epoch
        (25, 7, None),  # of batches in all
        (74, 7, None),
        (75, 7, 21),
    ],
)
def test_the_number_of_a_break_may_be_of_batches(least: int, steps: int | None, whole: int | None) -> None:
    rehearsal = rehearsed(length=5, moves=1, every=4, batches=50, least=least)
    length = length_of_training(rehearsal)
    assert (length["steps_per_epoch"], length["training_steps"]) == (steps, whole)
    assert length["epochs"] == (3 if whole else None)
    assert len(rehearsal.mistakes) == (1 if whole else 0)


def test_parts_of_a_schedule_are_not_compared() -> None:
    """Those of a sequence stand still before they begin."""
    rehearsal = rehearsed(length=99, moves=1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    begin, go_on = LinearLR(optimizer, total_iters=9), CosineAnnealingLR(optimizer, 90)
    chain = ChainedScheduler([go_on])
    places = {begin: [0, 1, 2], go_on: [-1] * 3, chain: [-1] * 3}
    rehearsal.schedules = {**places, SequentialLR(optimizer, [begin, chain], [9]): [0, 1, 2]}
    assert length_of_training(rehearsal)["schedule_ends_at_step"] == 99
    assert not rehearsal.mistakes


@pytest.mark.parametrize(
    ("loops", "epochs"),
    [
        (["range(3)"], 3),
        (["range(1, 1 + count)"], 7),
        (["range((count + 1) // 2)"], 4),
        (["enumerate(range(count - (1 + 1)))"], 5),
        (["[1, 2]", "range(3)"], 3),
        (["range(5)", "range((count + 1) // 2)"], 0),  # folds and epochs, or epochs and parts of them
        (["range(5)", "range(int(count))"], 0),
        (["range(len('abc'))"], 0),  # to call is to change something
        (["[1, 2]"], 0),
    ],
)
def test_the_epochs_are_those_of_the_only_range_around(loops: list[str], epochs: int, tmp_path: Path) -> None:
    lines = [f"{' ' * depth}for _ in {loop}:\n" for depth, loop in enumerate(loops)]
    script = tmp_path / "train.py"
    script.write_text(f"{''.join(lines)}{' ' * len(lines)}found = look()\n")
    names = {"count": 7, "look": lambda: epochs_of(sys._getframe(1))}
    assert runpy.run_path(str(script), names)["found"] == epochs


@pytest.mark.parametrize(
    ("test", "end"),
    [
        ("step == 100", 100),
        ("step + 1 >= most.steps", 9),
        ("step > count", 7),
        ("most.steps and step >= most.steps", 9),
        ("most.steps > 0 and step >= most.steps", 9),
        ("debug > 0 and step >= most.steps", inf),
        ("debug and step >= 10", inf),
        ("step >= 10 and debug", inf),
        ("(step + 1) % 2 == 0 and debug", inf),
        ("count and step + 1 >= most.steps", 9),
        ("step >= most.steps or debug", 9),
        ("none is not None and step >= none", inf),
        ("step >= none", inf),
        ("step >= -1", inf),
        ("step >= len([1])", inf),  # to call is to change something
        ("most.called()", inf),
        ("step == 'x'", inf),
    ],
)
@pytest.mark.parametrize("header", ["for step, _ in enumerate(batches()):", "for _ in batches():"])
def test_a_loop_breaks_off_at_the_number_of_its_condition(header: str, test: str, end: float, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{header}\n if count:\n  if {test}:\n   print(9)\n   break\n if count == 3: continue\n")
    most = SimpleNamespace(steps=9, called=Mock(side_effect=AssertionError))
    found = list[float]()

    def batches() -> Iterator[int]:
        frame = sys._getframe(1)
        found.append(end_of(frame))
        yield from ()

    runpy.run_path(str(script), {"count": 7, "debug": False, "most": most, "none": None, "batches": batches})
    assert found == [end]
    assert not most.called.called


@pytest.mark.parametrize(
    ("within", "end"),
    [
        ([" for index in batches():", "  if index == 5: break"], inf),  # an evaluation
        ([" for attempt in []:", "  if attempt == 2: break"], inf),
        ([" while tries:", "  if tries == 3: break"], inf),
        ([" while tries:", "  if tries == 3: break", " if step >= 9: break"], 9),
        ([" for index in []:", "  if index == 5: pass", "  else: break", " if step >= 9: break"], 9),
        ([" with print():", "  if step >= 9: break"], 9),
    ],
)
def test_a_break_is_that_of_the_innermost_loop_around_it(within: list[str], end: float, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    lines = [
        "for epoch in range(3):",
        " for step in batches():",
        *(f" {line}" for line in within),
        " if epoch == 2: break",
    ]
    script.write_text("\n".join(lines))
    found = list[float]()

    def batches() -> Iterator[int]:
        found.append(end_of(sys._getframe(1)))
        yield from ()

    runpy.run_path(str(script), {"tries": 0, "batches": batches})
    assert found == [end] * 3


def test_what_is_not_known_is_none() -> None:
    nothing: Any = SimpleNamespace(training={}, schedules={})
    assert set(length_of_training(nothing).values()) == {None}
