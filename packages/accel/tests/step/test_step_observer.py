"""Who observes an Accelerator is told what is prepared, each loss, and when a window closes."""

import pytest
import torch
from accel import Accelerator
from accel.optimizer import AcceleratedOptimizer
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset


class Notes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.ready: list[tuple[Accelerator, object]] = []
        self.losses: list[tuple[float, object]] = []
        self.closed: list[bool] = []

    def prepared(self, accelerator: Accelerator, ready: object) -> None:
        self.ready.append((accelerator, ready))
        if isinstance(ready, AcceleratedOptimizer):
            ready.on_step = self.on_step

    def loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> None:
        self.losses.append((loss.item(), weight))

    def on_step(self, optimizer: AcceleratedOptimizer) -> None:
        self.closed.append(optimizer.step_was_skipped)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    observer = Notes()
    monkeypatch.setattr(Accelerator, "observer", observer)
    return observer


def test_what_is_prepared_is_told_once(notes: Notes) -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    ready = accelerator.prepare(model, optimizer, loader, scheduler)
    assert [of for of, _ in notes.ready] == [accelerator] * 4
    assert {id(one) for _, one in notes.ready} == {id(one) for one in ready}
    accelerator.prepare(*ready)
    assert len(notes.ready) == 4


@pytest.mark.parametrize("every", [1, 2])
def test_each_loss_and_each_closed_window_are_told(notes: Notes, every: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=every)
    model = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    for number in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum() * 0 + number)
            optimizer.step()
            optimizer.zero_grad()
    assert notes.losses == [(0, None), (1, None), (2, None), (3, None)]
    assert notes.closed == [False] * (4 // every)


def test_a_step_that_fp16_skips_is_told(notes: Notes) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.full((1, 2), 1e30)).sum() * 1e30)
    optimizer.step()
    assert notes.closed == [True]


def test_nobody_observes_unless_somebody_is_set() -> None:
    assert Accelerator.observer is None
