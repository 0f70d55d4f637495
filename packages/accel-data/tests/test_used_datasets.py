"""A dataset that was read, and remembers something of it, when a job goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_data import ResumeError, prepare_data_loader
from torch.utils.data import DataLoader, Dataset


class Remembers(Dataset[int]):
    """The numbers 0 to 19; what happens to be in `seen` when one is read is up to `remember`."""

    def __init__(self, remember: Callable[[Any, int], None]) -> None:
        self.remember = remember
        self.seen: Any = None

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.remember(self, index)
        return index


def counts(dataset: Any, index: int) -> None:
    dataset.seen = (dataset.seen or 0) + 1


def opens(dataset: Any, index: int) -> None:
    if dataset.seen is None:
        with Path(__file__).open("rb") as file:
            dataset.seen = file


def caches(dataset: Any, index: int) -> None:
    dataset.seen = {**(dataset.seen or {}), index: index * index}


def part_of_a_job(dataset: Remembers) -> dict[str, Any]:
    loader: Any = prepare_data_loader(DataLoader(dataset, 4))
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state: dict[str, Any] = loader.state_dict()
    return state


@pytest.mark.parametrize("remember", [counts, opens])
@pytest.mark.parametrize("new", [True, False])
def test_a_job_goes_on_over_a_dataset_that_remembers_reads(remember: Callable[[Any, int], None], new: bool) -> None:
    dataset = Remembers(remember)
    state = part_of_a_job(dataset)
    if new:
        dataset = Remembers(remember)
        dataset[0]
    loader: Any = prepare_data_loader(DataLoader(dataset, 4))
    loader.load_state_dict(state)
    assert [number for batch in loader for number in batch.tolist()] == list(range(8, 20))


def test_a_dataset_that_keeps_what_it_read_differs_unless_told() -> None:
    """A7: from outside, a cache is like data. The error says how to go on, and then the job does."""
    dataset = Remembers(caches)
    state = part_of_a_job(dataset)
    loader: Any = prepare_data_loader(DataLoader(dataset, 4))
    with pytest.raises(ResumeError, match=r"fingerprint .* load_state_dict\(state, strict=False\) accepts"):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="continuing, although the dataset had the fingerprint"):
        loader.load_state_dict(state, strict=False)
    assert [number for batch in loader for number in batch.tolist()] == list(range(8, 20))
