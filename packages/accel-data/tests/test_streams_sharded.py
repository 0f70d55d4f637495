"""Streams that are sharded at their source: each sample is read and served once, and no rank waits for another."""

import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Found = tuple[list[list[int]], list[int]]


class Counting(IterableDataset[Tensor]):
    """Ids that lie in shards; each read is written to a file of its process."""

    def __init__(self, ids: Sequence[int], folder: str | None = None, num_shards: int | None = None) -> None:
        self.ids = ids
        self.folder = folder
        if num_shards is not None:
            self.num_shards = num_shards

    def shard(self, num_shards: int, index: int) -> "Counting":
        return type(self)(self.ids[index::num_shards], self.folder)

    def __iter__(self) -> Iterator[Tensor]:
        for number in self.ids:
            self.note(number)
            yield torch.tensor(number)

    def __len__(self) -> int:
        return len(self.ids)

    def note(self, number: int) -> None:
        if self.folder is not None:
            with (Path(self.folder) / str(os.getpid())).open("a") as file:
                file.write(f"{number}\n")


class Placed(Counting):
    """Its shards can say where they stand, and be put there."""

    at = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.at < len(self.ids):
            self.at += 1
            self.note(self.ids[self.at - 1])
            yield torch.tensor(self.ids[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class DividesItself(Counting):
    """Gives each loader worker a part of what it holds, as torch's documentation shows."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        index, of = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return (torch.tensor(number) for number in self.ids[index::of])


class Lengths(IterableDataset[Any]):
    """Shards of given lengths; sample i of shard s is 100 * s + i, or with `rows` a batch of so many of it."""

    def __init__(self, lengths: Sequence[int], only: int | None = None, rows: int | None = None) -> None:
        self.lengths = lengths
        self.num_shards = len(lengths)
        self.only = only
        self.rows = rows

    def shard(self, num_shards: int, index: int) -> "Lengths":
        assert num_shards == self.num_shards
        return Lengths(self.lengths, index, self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        for number in self.ids:
            yield torch.tensor(number) if self.rows is None else torch.full((self.rows,), number)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ids(self) -> list[int]:
        chosen = range(len(self.lengths)) if self.only is None else [self.only]
        return [100 * shard + number for shard in chosen for number in range(self.lengths[shard])]


class Words:
    """Collates to objects that are no tensors, or stand beside one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, samples: list[Tensor]) -> Any:
        words = [str(int(sample)) for sample in samples]
        return words if self.kind == "words" else {"id": torch.stack(samples), "words": words}


class Epochs(Counting):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def shard(self, num_shards: int, index: int) -> "Counting":
        return Counting([100 * self.epoch + number for number in self.ids[index::num_shards]])


def reads_in(folder: Path) -> list[int]:
    return sorted(int(line) for file in folder.iterdir() for line in file.read_text().splitlines())


def served(dataset: Any, size: int, workers: int, ending: str = "pad", dispatch: bool | None = None) -> Found:
    """This rank's batches of an epoch, and what metrics hold of them unless ranks may differ."""
    transport, window = TorchDist(), AccumulationState()
    plain = DataLoader[Tensor](dataset, batch_size=size, num_workers=workers)
    settings: dict[str, Any] = {"ending": ending, "dispatch_batches": dispatch}
    loader = prepare_data_loader(plain, transport=transport, accumulation=window, **settings)
    batches, metrics, lasts = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            batches.append(batch.tolist())
            lasts.append(window.end_of_dataloader)
            if ending != "join":
                metrics += gather_for_metrics(batch, transport, window.active).tolist()
    transport.barrier()
    assert lasts == [False] * (len(batches) - 1) + [True] * bool(batches)
    return batches, metrics


def test_each_sample_is_read_once_by_all_ranks_and_workers(world: MakePool, tmp_path: Path) -> None:
    """T11: two processes with two loader workers each read N samples together, and serve each once."""
    n = 203
    results = world(2).run(served, Counting(range(n), str(tmp_path)), 4, 2)
    assert reads_in(tmp_path) == list(range(n))
    assert len(list(tmp_path.iterdir())) == 4
    for _, metrics in results:
        assert sorted(metrics) == list(range(n))
    assert len({len(batches) for batches, _ in results}) == 1


@pytest.mark.grid(1)
@pytest.mark.parametrize("dispatch", [None, False])
@pytest.mark.parametrize(("num_shards", "divides"), [(4, True), (12, True), (3, False), (5, False), (1, False)])
def test_declared_shards_are_used_where_they_divide(
    world: MakePool, tmp_path: Path, num_shards: int, divides: bool, dispatch: bool | None
) -> None:
    """T11: other counts are dispatched, or read whole on request; each sample is served once."""
    n, workers = 97, 2 if dispatch is None and divides else 0
    dataset = Counting(range(n), str(tmp_path), num_shards)
    for _, metrics in world(2).run(served, dataset, 4, workers, "pad", dispatch):
        assert sorted(metrics) == list(range(n))
    assert reads_in(tmp_path) == sorted([*range(n)] * (1 if divides or dispatch is None else 2))


UNEVEN = {
    "7 and 5 batches": [28, 20],
    "an empty shard": [9, 0, 7, 3],
    "all in one": [0, 17, 0, 0, 0, 0, 0, 0],
    "one each": [1, 1],
    "a short end": [13, 12, 9, 1],
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("lengths", UNEVEN.values(), ids=UNEVEN)
def test_uneven_shards_end_under_every_policy(world: MakePool, lengths: list[int], size: int) -> None:
    """T11: with and without samples that are served again, no rank waits for another."""
    of_rank, ranks = [sum(lengths[rank::size]) for rank in range(size)], world(size)
    for ending in ("drop", "join") if 0 in of_rank else ("pad", "exact", "drop", "join"):
        results = ranks.run(served, Lengths(lengths), 4, 0, ending, timeout_s=10)
        all_ids = Lengths(lengths).ids
        counts = [len(batches) for batches, _ in results]
        seen = [one for batches, _ in results for batch in batches for one in batch]
        if ending == "join":
            assert counts == [-(-count // 4) for count in of_rank]
            assert sorted(seen) == all_ids
        elif ending == "drop":
            assert counts == [min(count // 4 for count in of_rank)] * size
            assert len(set(seen)) == len(seen) == 4 * sum(counts)
            assert all(sorted(metrics) == sorted(seen) for _, metrics in results)
        else:
            assert counts == [max(-(-count // 4) for count in of_rank)] * size
            assert all(sorted(metrics) == all_ids for _, metrics in results)
            if ending == "pad" and size > 1:
                assert {len(batch) for batches, _ in results for batch in batches} == {4}


def counted(lengths: list[int], ending: str) -> tuple[int, list[int]]:
    transport, window, plain = TorchDist(), AccumulationState(), DataLoader(Lengths(lengths), 4)
    loader = prepare_data_loader(plain, ending=ending, transport=transport, accumulation=window)
    found = [gather_for_metrics(batch, transport, window.active).tolist() for batch in loader]
    return len(found), list(chain.from_iterable(found))


@pytest.mark.parametrize("ending", ["pad", "exact"])
def test_a_rank_without_a_sample_is_served_what_does_not_count(world: MakePool, ending: str) -> None:
    """The others would wait for it."""
    zero, one = world(2).run(counted, UNEVEN["all in one"], ending, timeout_s=10)
    assert zero == one
    assert len(set(zero[1])) == len(zero[1]) == sum(UNEVEN["all in one"])


def passed(lengths: list[int], size: int, ending: str, stop: int, state: Any) -> tuple[list[int], Any]:
    """What metrics hold of a pass that begins at a state, up to a number of batches, and the state there."""
    transport, window, metrics = TorchDist(), AccumulationState(), list[int]()
    plain = DataLoader(Lengths(lengths), batch_size=size)
    loader: Any = prepare_data_loader(plain, ending=ending, transport=transport, accumulation=window)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these shards are read again up to their places
        if state is not None:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader, start=1):
            metrics += gather_for_metrics(batch, transport, window.active).tolist()
            if number == stop:
                return metrics, loader.state_dict()
    return metrics, None


@pytest.mark.parametrize("ending", ["pad", "exact"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_pass_continues_after_the_shards_of_a_rank_have_ended(world: MakePool, ranks: int, ending: str) -> None:
    """Rank 1 has two batches, rank 0 has seven."""
    lengths, first, then = [28, 7], world(2), world(ranks)
    for batches in (1, 2, 4, 7):
        (before, state), _ = first.run(passed, lengths, 4, ending, batches, None, timeout_s=10)
        for after, _ in then.run(passed, lengths, 8 // ranks, ending, 0, state, timeout_s=10):
            # at the last batch the next epoch begins
            assert sorted(after if state["ended"] else before + after) == Lengths(lengths).ids


def test_uneven_shards_end_with_loader_workers(world: MakePool) -> None:
    pair = world(2)
    for ending in ("pad", "exact"):
        for _, metrics in pair.run(served, Lengths([11, 3, 0, 6]), 2, 2, ending, timeout_s=20):
            assert sorted(metrics) == Lengths([11, 3, 0, 6]).ids
    joined = pair.run(served, Lengths([11, 3, 0, 6]), 2, 2, "join", timeout_s=20)
    assert sorted(one for batches, _ in joined for batch in batches for one in batch) == Lengths([11, 3, 0, 6]).ids
    zero, one = pair.run(served, Lengths([11, 4, 0, 7]), 2, 2, "drop", timeout_s=20)
    # the workers of rank 0 read 11 and 4 samples, those of rank 1 none and 7
    assert len(zero[0]) == len(one[0]) == 3
    assert zero[1] == one[1]
    assert len(set(zero[1])) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_divides_itself_among_workers_loses_nothing(world: MakePool, workers: int) -> None:
    for _, metrics in world(2).run(served, DividesItself(range(64)), 4, workers):
        assert sorted(metrics) == list(range(64))


def test_a_batch_of_the_job_holds_the_same_samples_at_any_world() -> None:
    """Worlds 1, 2, 4 and 8, while no shard has ended."""
    jobs = []
    for world in (1, 2, 4, 8):
        loaders = [
            prepare_data_loader(
                DataLoader(Counting(range(128)), batch_size=16 // world), num_processes=world, process_index=rank
            )
            for rank in range(world)
        ]
        rounds = zip(*loaders, strict=True)
        jobs.append([sorted(chain.from_iterable(batch.tolist() for batch in one)) for one in rounds])
    assert jobs[0] == [list(range(first, first + 16)) for first in range(0, 128, 16)]
    assert jobs == [jobs[0]] * 4


def begun(dataset: Any, workers: int, batches: int) -> tuple[list[list[int]], dict[str, Any]]:
    loader: Any = prepare_data_loader(DataLoader(dataset, batch_size=6, num_workers=workers), transport=TorchDist())
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        if len(seen) == batches:
            return seen, loader.state_dict()
    raise AssertionError(f"fewer than {batches} batches")


def continued(dataset: Any, size: int, workers: int, state: dict[str, Any]) -> list[list[int]]:
    plain = DataLoader(dataset, batch_size=size, num_workers=workers)
    loader: Any = prepare_data_loader(plain, transport=TorchDist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(state)
        return [sorted(gather_for_metrics(one, TorchDist(), loader.accumulation.active).tolist()) for one in loader]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (4, 0), (2, 2)])
def test_shards_that_know_their_place_read_nothing_again(
    world: MakePool, tmp_path: Path, ranks: int, workers: int
) -> None:
    """Also at another number of processes, which keep the batch of the job."""
    n = 117
    results = world(2).run(begun, Placed(range(n)), workers, 5)
    seen = sorted(one for batches, _ in results for batch in batches for one in batch)
    states = [state for _, state in results]
    for entry in ("consumed", "taken", "sources", "next_stream"):
        assert states[0][entry] == states[1][entry]
    assert states[0]["consumed"] == len(set(seen)) == 60
    rest = sorted(set(range(n)) - set(seen))
    dataset = Placed(range(n), str(tmp_path))
    for steps in world(ranks).run(continued, dataset, 12 // ranks, workers, states[0]):
        assert sorted(chain.from_iterable(steps)) == rest
        assert workers or list(chain.from_iterable(steps)) == rest  # step k holds what it would have held
    assert reads_in(tmp_path) == rest


def elements(lengths: list[int], rows: int | None, ending: str) -> tuple[int, list[int]]:
    transport, window = TorchDist(), AccumulationState()
    plain = DataLoader(Lengths(lengths, rows=rows), batch_size=None)
    loader = prepare_data_loader(plain, ending=ending, transport=transport, accumulation=window)
    count, metrics = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            count += 1
            metrics += gather_for_metrics(batch.view(-1), transport, window.active).tolist()
    return count, sorted(metrics)


@pytest.mark.parametrize("ending", ["pad", "exact"])
@pytest.mark.parametrize("rows", [None, 3])
def test_elements_that_are_batches_are_served_whole(world: MakePool, rows: int | None, ending: str) -> None:
    """batch_size=None: an element has one sample or several, and all that are real count once."""
    pair = world(2)
    for lengths in ([4, 4], [4, 2], [2, 5]):
        for count, metrics in pair.run(elements, lengths, rows, ending, timeout_s=10):
            assert count == max(lengths)
            assert metrics == sorted(Lengths(lengths).ids * (rows or 1))


def worded(lengths: list[int], kind: str, ending: str) -> tuple[int, list[str]]:
    transport, window = TorchDist(), AccumulationState()
    plain = DataLoader(Lengths(lengths), batch_size=2, collate_fn=Words(kind))
    loader = prepare_data_loader(plain, ending=ending, transport=transport, accumulation=window)
    count, metrics = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            count += 1
            words = batch if kind == "words" else batch["words"]
            if kind != "words":
                assert words == [str(one) for one in batch["id"].tolist()]
            metrics += gather_for_metrics(words, transport, window.active, use_gather_object=True)
    return count, sorted(metrics, key=int)


@pytest.mark.parametrize("ending", ["pad", "exact"])
@pytest.mark.parametrize("kind", ["words", "words and tensors"])
def test_objects_in_uneven_shards_each_count_once(world: MakePool, kind: str, ending: str) -> None:
    """What cannot be cut or joined does not end the epoch, nor is it counted twice."""
    pair = world(2)
    for lengths in ([8, 4], [7, 4], [4, 9]):
        for count, metrics in pair.run(worded, lengths, kind, ending, timeout_s=10):
            assert count == -(-max(lengths) // 2)
            assert metrics == [str(one) for one in Lengths(lengths).ids]


def epochs(workers: int) -> list[list[int]]:
    plain = DataLoader(Epochs(range(16)), batch_size=4, num_workers=workers)
    loader: Any = prepare_data_loader(plain, transport=TorchDist())
    first, second = [[one for batch in loader for one in batch.tolist()] for _ in range(2)]
    loader.set_epoch(7)
    return [first, second, [one for batch in loader for one in batch.tolist()]]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_reaches_the_dataset_before_it_is_sharded(world: MakePool, workers: int) -> None:
    zero, one = world(2).run(epochs, workers)
    for number, epoch in enumerate([0, 1, 7]):
        assert sorted(zero[number] + one[number]) == [100 * epoch + sample for sample in range(16)]


def lengths_of(lengths: list[int], ending: str) -> tuple[int, int, int]:
    loader: Any = prepare_data_loader(DataLoader(Lengths(lengths), 4), ending=ending, transport=TorchDist())
    return len(loader), sum(1 for _ in loader), loader.total_dataset_length


@pytest.mark.parametrize("ending", ["pad", "drop", "exact", "join"])
def test_the_length_is_the_number_of_batches(world: MakePool, ending: str) -> None:
    pair = world(2)
    for lengths in ([8, 8], [28, 20], [9, 8]):
        for told, counted, samples in pair.run(lengths_of, lengths, ending):
            assert told == counted
            assert samples == sum(lengths)
