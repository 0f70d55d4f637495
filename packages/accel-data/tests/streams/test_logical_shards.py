"""A stream of any number of files is cut into few logical shards, each read file by file; they stay as they are."""

import os
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import ResumeError, prepare_data_loader
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

#: logical shards of a reader when a job begins, at most
MOST = 8
Call = tuple[int, int]


class Files(IterableDataset[Tensor]):
    """`rows` numbers in each of `files` files, made up; it notes how it is sharded, and how many are open at a time."""

    open, most_open = 0, 0

    def __init__(self, files: int, rows: int, folder: str | None = None, *, told: bool = True) -> None:
        self.files, self.rows, self.folder, self.told = range(files), rows, folder, told
        if told:
            self.num_shards = files

    def shard(self, num_shards: int, index: int) -> "Files":
        """A run of the files; those that are left over go to the first shards, as `datasets` does it.

        Raises: IndexError for more shards than files.
        """
        if self.folder is not None:
            with (Path(self.folder) / str(os.getpid())).open("a") as file:
                file.write(f"{num_shards} {index}\n")
        if self.told and not 0 <= index < num_shards <= len(self.files):
            raise IndexError(f"shard {index} of {num_shards}, of {len(self.files)} files")
        each, over = divmod(len(self.files), num_shards)
        first = each * index + min(index, over)
        part = Files(0, self.rows, told=self.told)
        part.files = self.files[first : first + each + (index < over)]
        return part

    def __iter__(self) -> Iterator[Tensor]:
        for file in self.files:
            Files.open += 1
            Files.most_open = max(Files.open, Files.most_open)
            try:
                yield from map(torch.tensor, range(file * self.rows, (file + 1) * self.rows))
            finally:
                Files.open -= 1


def rank_of(source: Any, world: int, rank: int, workers: int = 0) -> Any:
    """The share of one rank, in which nothing is repeated at the end."""
    plain = DataLoader(source, 4, num_workers=workers)
    return prepare_data_loader(plain, num_processes=world, process_index=rank, ending="join")


def numbers(loader: Any) -> list[int]:
    return [one for batch in loader for one in batch.tolist()]


def calls_in(folder: Path) -> list[Call]:
    lines = chain.from_iterable(file.read_text().splitlines() for file in folder.iterdir())
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


@pytest.mark.grid(1)
@pytest.mark.parametrize("told", [True, False], ids=["files are counted", "unknown"])
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2), (4, 0), (8, 0)])
def test_a_source_is_asked_once_for_each_shard_of_a_reader(
    world: int, workers: int, told: bool, tmp_path: Path
) -> None:
    """3,000 files: not once for each, and by nobody but the reader of the shard."""
    source = Files(3000, 1, str(tmp_path), told=told)
    served = [numbers(rank_of(source, world, rank, workers)) for rank in range(world)]
    assert sorted(chain.from_iterable(served)) == list(range(3000))
    calls = calls_in(tmp_path)
    ((shards, _), *_) = calls
    readers = world * max(workers, 1)
    assert shards <= MOST * readers
    assert shards % readers == 0
    assert Counter(calls) == {(shards, index): 1 for index in range(shards)}


@pytest.mark.grid(1)
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2)])
@pytest.mark.parametrize("files", [4, 7, 12, 13, 33, 500, 1009])
def test_files_need_not_come_out_even(files: int, world: int, workers: int) -> None:
    """As many files as readers or more are shared out at the source, whatever their number."""
    source = Files(files, 3)
    loaders = [rank_of(source, world, rank, workers) for rank in range(world)]
    for _ in range(2):
        assert sorted(chain.from_iterable(map(numbers, loaders))) == list(range(3 * files))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_few_files_are_open_at_a_time(world: int) -> None:
    """A logical shard is read one file after the other."""
    for rank in range(world):
        Files.open = Files.most_open = 0
        assert len(numbers(rank_of(Files(1000, 3), world, rank))) == pytest.approx(3000 / world, abs=3 * MOST)
        assert Files.most_open <= MOST
        assert Files.open == 0


def test_samples_come_of_each_shard_in_turn(tmp_path: Path) -> None:
    """One process: the first of each logical shard, then the second of each."""
    served = numbers(rank_of(Files(500, 4, str(tmp_path)), 1, 0))
    ((shards, _), *_) = calls_in(tmp_path)
    parts = [list(Files(500, 4).shard(shards, index)) for index in range(shards)]
    turns = [int(parts[index][turn]) for turn in range(3) for index in range(shards)]
    assert served[: len(turns)] == turns


@pytest.mark.grid(1)
@pytest.mark.parametrize("told", [True, False], ids=["files are counted", "unknown"])
@pytest.mark.parametrize("files", [10**6, 2**20])
def test_a_million_shards_take_little_memory(files: int, told: bool) -> None:
    """A2: prepared, and its first batch served, with at most 20 MB."""
    tracemalloc.start()
    try:
        batch = next(iter(rank_of(Files(files, 2, told=told), 2, 1)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(batch) == 4
    assert peak <= 20e6


Steps = list[list[int]]


def begun(folder: str, size: int, workers: int, steps: int) -> tuple[Steps, Any]:
    """The first steps of a job, and its state."""
    loader: Any = prepare_data_loader(
        DataLoader(Files(200, 2, folder), size, num_workers=workers),
        transport=TorchDist(),
        accumulation=AccumulationState(),
    )
    return some(loader, steps)


def some(loader: Any, steps: int | None) -> tuple[Steps, Any]:
    found: Steps = []
    for batch in loader:
        found.append(sorted(gather_for_metrics(batch, TorchDist(), loader.accumulation.active).tolist()))
        if len(found) == steps:
            return found, loader.state_dict()
    return found, None


def continued(folder: str, size: int, workers: int, state: Any) -> Steps:
    """The rest of the pass of a job."""
    loader: Any = prepare_data_loader(
        DataLoader(Files(200, 2, folder), size, num_workers=workers),
        transport=TorchDist(),
        accumulation=AccumulationState(),
    )
    loader.load_state_dict(state)
    return some(loader, None)[0]


@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("began_on", [3, 4])
def test_a_job_keeps_its_shards_on_any_world_that_divides_them(
    world: MakePool, tmp_path: Path, began_on: int, workers: int
) -> None:
    """Without workers also every step is what it would have been; K comes from the state, not from the new world.

    Three processes begin with 24 shards, the others with 8.
    """
    together, stop = 12, 10
    folders = [tmp_path / str(size) for size in (0, 1, 2, 4)]
    for folder in folders:
        folder.mkdir()
    job = world(began_on)
    whole, _ = job.run(begun, str(folders[0]), together // began_on, workers, 999)[0]
    before, state = job.run(begun, str(folders[0]), together // began_on, workers, stop)[0]
    assert before == whole[:stop]
    (shards,) = {shards for shards, _ in calls_in(folders[0])}
    for size, folder in zip((1, 2, 4), folders[1:], strict=True):
        resumed = job if size == began_on else world(size)
        for rest in resumed.run(continued, str(folder), together // size, workers, state):
            assert sorted(chain(*before, *rest)) == list(range(400))
            if not workers or size == began_on:
                assert rest[:15] == whole[stop : stop + 15]
        assert {shards for shards, _ in calls_in(folder)} == {shards}


def refusal(folder: str, size: int, state: Any) -> str:
    loader: Any = prepare_data_loader(
        DataLoader(Files(200, 2, folder), size), transport=TorchDist(), accumulation=AccumulationState()
    )
    with pytest.raises(ResumeError) as error:
        first_after(loader, state)
    return str(error.value)


def first_after(loader: Any, state: Any) -> None:
    loader.load_state_dict(state)
    next(iter(loader))


def test_a_world_that_cannot_share_them_is_told_which_could(world: MakePool, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    _, state = world(2).run(begun, str(first), 4, 0, 3)[0]
    ((shards, _), *_) = calls_in(first)
    for text in world(3).run(refusal, str(second), 4, state):
        assert f"cut into {shards} logical shards" in text
        assert re.search(r"\b3\b", text)
        (fitting,) = re.findall(r"divides \d+: ([\d, ]+)$", text)
        assert [int(one) for one in fitting.split(", ")] == [one for one in range(1, shards + 1) if not shards % one]
