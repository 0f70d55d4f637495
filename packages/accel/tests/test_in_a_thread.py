"""A training in a thread of a plain process, as Ray Train, Databricks and many servers run it."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, ProjectConfiguration
from accel_testing import MakePool
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)), name="engine")
    thread.start()
    thread.join()
    return results[0]


def trained(folder: Path) -> tuple[list[float], list[float], bool]:
    """Weights after two epochs with workers, a save and a load; the gathered numbers; whether a stop was requested."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir=folder)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    samples = torch.arange(24.0).reshape(12, 2) / 24
    loader = DataLoader(TensorDataset(samples), batch_size=2, shuffle=True, num_workers=1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    seen: list[float] = []
    stops = False
    for epoch in range(2):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            seen += accelerator.gather_for_metrics(batch)[:, 0].tolist()
        stops |= accelerator.stop_requested()
        if epoch == 0:
            accelerator.save_state(folder / "half", asynchronous=True)
    weights = torch.cat([held.detach().reshape(-1) for held in model.parameters()]).tolist()
    accelerator.load_state(folder / "half")
    accelerator.end_training()
    return weights, sorted(seen), stops


def trained_in_thread(folder: Path) -> Any:
    return in_thread(trained, folder)


@pytest.mark.parametrize("size", [1, 2])
def test_it_trains_as_in_the_main_thread(size: int, world: MakePool, tmp_path: Path) -> None:
    pool = world(size)
    assert pool.run(trained_in_thread, tmp_path / "thread") == pool.run(trained, tmp_path / "main")


def test_it_is_told_once_that_no_signal_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    accelerator = in_thread(lambda: Accelerator(cpu=True))
    with caplog.at_level(logging.WARNING, "accel"):
        assert [in_thread(accelerator.stop_requested) for _ in range(2)] == [False, False]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "runs in the thread engine, and Python lets only the main thread note signals" in line


def test_signals_that_were_asked_for_by_name_are_an_error() -> None:
    def made() -> str:
        with pytest.raises(ValueError, match=r"stop_signals SIGUSR2: .* made in the thread engine") as raised:
            Accelerator(cpu=True, project_config=ProjectConfiguration(stop_signals=("SIGUSR2",)))
        return str(raised.value)

    assert in_thread(made).endswith("leave stop_signals out")
