"""What a step takes: tokens a second, its time, and how much of it was a wait for data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel_state import release
from accel_track.local.lines import entries


class Clock:
    """A clock that goes on when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Each sample takes a quarter of a second to read."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> torch.Tensor:
        self.clock.now += 0.25
        return torch.ones(1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr("accel.tracking.throughput.perf_counter", clock)
    monkeypatch.setattr("accel_data.loaders.device_prefetch.perf_counter", clock)
    yield clock
    release()


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*/*/metrics.jsonl")
    return [line["metrics"] for line in entries(path)]


def test_tokens_of_a_step_have_their_speed(tmp_path: Path, clock: Clock) -> None:
    """S138: each step reads one sample and computes for a second and a half; its batch is read one ahead."""
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    loader: Any = accelerator.prepare(torch.utils.data.DataLoader(Slow(clock)))
    accelerator.init_trackers("project")
    for step, _ in enumerate(loader):
        clock.now += 1.5
        if step % 2 == 0:
            accelerator.log({"loss": 1.0}, step=step, tokens=torch.tensor(700))
        else:
            accelerator.log({"other": 1.0}, step=step)
    accelerator.end_training()
    first, _, second, *_ = lines(tmp_path)
    assert first == {"loss": 1.0}, "nothing came before"
    assert second == {"loss": 1.0, "tokens_per_second": 200.0, "step_time_s": 1.75, "data_wait_s": 0.25}


def test_calls_without_tokens_measure_nothing_and_own_names_stay(tmp_path: Path, clock: Clock) -> None:
    accelerator = Accelerator(cpu=True, log_with="local", project_dir=tmp_path)
    accelerator.init_trackers("project")
    accelerator.log({"loss": 1.0})
    for _ in range(2):
        clock.now += 2
        accelerator.log({"step_time_s": 7.0}, tokens=8)
    accelerator.end_training()
    assert lines(tmp_path)[1:] == [
        {"step_time_s": 7.0},
        {"tokens_per_second": 4.0, "step_time_s": 7.0, "data_wait_s": 0.0},
    ]
