"""T24, fault test 23: a state that is taken while gradients accumulate goes back to the newest optimizer step."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accel_data import SeedableRandomSampler, prepare_data_loader
from accel_state import AccumulationState
from suite.toy_models import RangeDataset, RangeStream
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

EPOCHS = 3
N, SIZE, EVERY = 20, 2, 4


class Stateful(IterableDataset[Tensor]):
    """Every `of`-th number from `index` on; it says where it stands."""

    def __init__(self, of: int = 1, index: int = 0) -> None:
        self.of, self.index, self.at, self.begin = of, index, 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        begin, self.begin = self.begin, 0
        for at, number in enumerate(range(self.index, N, self.of), start=1):
            if at > begin:
                self.at = at
                yield torch.tensor(number)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]


class Shards(Stateful):
    def shard(self, num_shards: int, index: int) -> Stateful:
        return Stateful(num_shards, index)


def mapped(**settings: Any) -> DataLoader[Any]:
    return DataLoader(RangeDataset(N), SIZE, **settings)


MAKE: dict[str, Callable[[], DataLoader[Any]]] = {
    "sequential": mapped,
    "shuffled": lambda: mapped(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "shuffled by default": lambda: mapped(shuffle=True),
    "seedable": lambda: mapped(sampler=SeedableRandomSampler(range(N), data_seed=4)),
    "weighted": lambda: mapped(sampler=WeightedRandomSampler([1.0] * N, N)),
    "stream": lambda: DataLoader(RangeStream(N), SIZE),
    "stateful": lambda: DataLoader(Stateful(), SIZE),
    "shards": lambda: DataLoader(Shards(), SIZE),
    "two workers": lambda: mapped(shuffle=True, num_workers=2),
}


class Job:
    """Trains from the start, or from a state; `steps` are the samples of each optimizer step."""

    def __init__(self, kind: str, flush: bool, state: dict[str, Any] | None, seed: int) -> None:
        torch.manual_seed(seed)
        self.accumulation = AccumulationState(EVERY, at_epoch_end="flush" if flush else "carry")
        loader: Any = prepare_data_loader(MAKE[kind](), accumulation=self.accumulation)
        self.loader = loader
        self.steps: list[list[int]] = []
        if state is not None:
            self.loader.load_state_dict(state)

    def micro_batches(self) -> Iterator[None]:
        window: list[int] = []
        while self.loader.iteration < EPOCHS:
            for batch in self.loader:
                due = self.accumulation.tick()
                window = window + batch.tolist()
                if due:
                    self.steps.append(window)
                    window = []
                yield


@pytest.mark.grid(1)
@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("kind", MAKE)
def test_a_job_goes_on_with_whole_windows(kind: str, flush: bool) -> None:
    """From every micro-batch of three epochs of ten: the last window of each is short, or carried over."""
    whole = Job(kind, flush, None, 1)
    count = sum(1 for _ in whole.micro_batches())
    assert count == EPOCHS * N // SIZE
    assert [len(step) for step in whole.steps[:4]] == ([8, 8, 4, 8] if flush else [8, 8, 8, 8])

    broken, places = Job(kind, flush, None, 1), []
    for _ in broken.micro_batches():
        places.append((len(broken.steps), broken.loader.state_dict()))
    assert broken.steps == whole.steps
    for number, (done, state) in enumerate(places[:: 7 if kind == "two workers" else 1], start=1):
        again = Job(kind, flush, state, 99)
        for _ in again.micro_batches():
            pass
        assert again.steps == whole.steps[done:], f"after micro-batch {number}, {done} steps done"


@pytest.mark.parametrize("flush", [True, False])
def test_evaluation_inside_a_window_changes_nothing(flush: bool) -> None:
    """T24: neither where the window ends nor where the job goes on."""
    whole = Job("shuffled", flush, None, 1)
    for _ in whole.micro_batches():
        pass
    job = Job("shuffled", flush, None, 1)
    inner = prepare_data_loader(DataLoader(RangeDataset(6), 1), accumulation=job.accumulation)
    for number, _ in enumerate(job.micro_batches(), start=1):
        due = job.accumulation.due
        for _ in inner:
            assert job.accumulation.due == due
            if number % 2:
                break
        done, state = len(job.steps), job.loader.state_dict()
        again = Job("shuffled", flush, state, 99)
        for _ in again.micro_batches():
            pass
        assert again.steps == whole.steps[done:], number
    assert job.steps == whole.steps
