"""Streams of `datasets`, from hundreds of files: each sample once, few files open, and exact after a resume."""

import os
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.iterable.source import is_stateful
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from suite.soak import in_soak
from torch.utils.data import DataLoader

N = 400
Steps = list[list[int]]


def files(folder: str, first: int = 0, last: int = 100) -> Any:
    """A stream of 100 files of a folder, or of others of them."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import load_dataset

    found = sorted(map(str, Path(folder).iterdir()))[first:last]
    kind = "json" if found[0].endswith(".jsonl") else "parquet"
    return load_dataset(kind, data_files=found, split="train", streaming=True, cache_dir=f"{folder}-cache")


def odd(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2)


def twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"] * 2}


def shuffled(folder: str) -> Any:
    return files(folder).shuffle(seed=3, buffer_size=40)


def concatenated(folder: str) -> Any:
    from datasets import concatenate_datasets

    return concatenate_datasets([files(folder, 0, 24), files(folder, 24, 64)])


def interleaved(folder: str) -> Any:
    """The one source ends long before the other, and nothing is left out."""
    from datasets import interleave_datasets

    sources = [files(folder, 0, 24), files(folder, 24, 64)]
    return interleave_datasets(sources, stopping_strategy="all_exhausted_without_replacement")


def nested(folder: str) -> Any:
    """Shuffled, mapped, and of two levels."""
    from datasets import interleave_datasets

    sources = [concatenated(folder), files(folder, 64, 96)]
    whole = interleave_datasets(sources, stopping_strategy="all_exhausted_without_replacement")
    return whole.map(twice).shuffle(seed=1, buffer_size=10)


def as_tensors(folder: str) -> Any:
    return files(folder, 0, 64).with_format("torch")


STREAMS: dict[str, tuple[Callable[[str], Any], list[int]]] = {
    "files": (files, [*range(N)]),
    "thirteen files": (lambda folder: files(folder, 0, 13), [*range(52)]),
    "one file": (lambda folder: files(folder, 0, 1), [*range(4)]),
    "shuffled": (shuffled, [*range(N)]),
    "mapped": (lambda folder: files(folder).map(twice), [*range(0, 2 * N, 2)]),
    "filtered": (lambda folder: files(folder).filter(odd), [*range(1, N, 2)]),
    "concatenated": (concatenated, [*range(256)]),
    "interleaved": (interleaved, [*range(256)]),
    "nested": (nested, [*range(0, 2 * 384, 2)]),
    "tensors": (as_tensors, [*range(256)]),
}


def prepared(kind: str, folder: str, size: int, workers: int, **options: Any) -> Any:
    plain = DataLoader[Any](STREAMS[kind][0](folder), size, num_workers=workers, **options)
    return prepare_data_loader(plain, transport=TorchDist(), accumulation=AccumulationState())


def steps_of(loader: Any, stop: int | None = None) -> tuple[Steps, Any]:
    """The samples of each step of the job in a pass, up to a stop, and the state there."""
    found: Steps = []
    for batch in loader:
        found.append(sorted(gather_for_metrics(batch["id"], TorchDist(), loader.accumulation.active).tolist()))
        if len(found) == stop:
            return found, loader.state_dict()
    return found, None


def epochs(kind: str, folder: str, workers: int) -> list[list[int]]:
    loader = prepared(kind, folder, 5, workers, persistent_workers=workers > 0)
    return [list(chain.from_iterable(steps_of(loader)[0])) for _ in range(2)]


@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", STREAMS)
def test_each_sample_is_served_once_in_each_epoch(world: MakePool, json_files: str, kind: str, workers: int) -> None:
    """A2: two ranks, without workers and with two each."""
    for first, second in world(2).run(epochs, kind, json_files, workers, timeout_s=60):
        assert sorted(first) == STREAMS[kind][1]
        assert sorted(second) == STREAMS[kind][1]


def test_parquet_files_are_served_like_others(world: MakePool, parquet_files: str) -> None:
    for first, second in world(2).run(epochs, "files", parquet_files, 0, timeout_s=60):
        assert sorted(first) == sorted(second) == [*range(N)]


@pytest.mark.parametrize("workers", [2, *in_soak(0)])
def test_an_epoch_is_shuffled_anew(world: MakePool, json_files: str, workers: int) -> None:
    """As with `set_epoch` by hand; the number of the epoch reaches what was sharded, and workers that live on."""
    first, second = world(2).run(epochs, "shuffled", json_files, workers, timeout_s=60)[0]
    assert first != second


def shuffled_inside(folder: str) -> Any:
    """A mapped stream of two, of which the second is shuffled."""
    from datasets import interleave_datasets

    return interleave_datasets([files(folder, 0, 24), files(folder, 24, 64).shuffle(buffer_size=10)]).map(twice)


@pytest.fixture
def files_of_here(json_files: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The files, for `datasets` in this process, which sets a variable when it is imported."""
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")
    return json_files


@pytest.mark.parametrize("kind", ["files", "mapped", "filtered", "concatenated", "interleaved", "tensors"])
def test_a_stream_without_a_buffer_goes_on_by_its_state(files_of_here: str, kind: str) -> None:
    assert is_stateful(STREAMS[kind][0](files_of_here))


@pytest.mark.parametrize("make", [shuffled, nested, shuffled_inside])
def test_a_stream_with_a_buffer_anywhere_is_read_again(files_of_here: str, make: Callable[[str], Any]) -> None:
    """Its state leaves the buffer out."""
    assert not is_stateful(make(files_of_here))


def first_life(kind: str, folder: str, size: int, workers: int) -> tuple[Steps, Steps, Any]:
    """The steps of a whole pass, those up to batch 25 of another, and the state there."""
    whole, _ = steps_of(prepared(kind, folder, size, workers))
    before, state = steps_of(prepared(kind, folder, size, workers), 25)
    return whole, before, state


def second_life(kind: str, folder: str, size: int, workers: int, state: Any) -> Steps:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = prepared(kind, folder, size, workers)
        loader.load_state_dict(state)
        rest, _ = steps_of(loader)
    again = [str(one.message) for one in caught if "read again" in str(one.message)]
    assert bool(again) == (kind == "shuffled"), again
    return rest


@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["files", "shuffled", *in_soak("mapped")])
def test_a_job_goes_on_at_batch_25_on_any_world(world: MakePool, json_files: str, kind: str, workers: int) -> None:
    """A2: on 1, 2 and 4 ranks; what is left of a shuffle buffer is not lost, so its shards are read again."""
    together = 8
    pools = {size: world(size) for size in (1, 2, 4)}
    (whole, before, state), *_ = pools[2].run(first_life, kind, json_files, together // 2, workers, timeout_s=60)
    assert before == whole[:25]
    for size in pools:
        for rest in pools[size].run(second_life, kind, json_files, together // size, workers, state, timeout_s=60):
            assert sorted(chain(*before, *rest)) == STREAMS[kind][1]
            if size == 2 or not workers:
                assert rest[:15] == whole[25:40]
            if size == 2:
                assert rest == whole[25:]


def test_parquet_files_are_gone_on_with(world: MakePool, parquet_files: str) -> None:
    pair = world(2)
    (whole, before, state), *_ = pair.run(first_life, "files", parquet_files, 4, 0, timeout_s=60)
    for rest in pair.run(second_life, "files", parquet_files, 4, 0, state, timeout_s=60):
        assert sorted(chain(*before, *rest)) == [*range(N)]
        assert rest == whole[25:]


def later(kind: str, folder: str, state: Any) -> tuple[Steps, Any]:
    """The second epoch of a job, or what a state has left of it, and the state at its 30th batch."""
    loader = prepared(kind, folder, 4, 0)
    if state is not None:
        loader.load_state_dict(state)
        return steps_of(loader)[0], None
    steps_of(loader)
    whole, at_30 = Steps(), None
    for batch in loader:
        whole.append(sorted(gather_for_metrics(batch["id"], TorchDist(), loader.accumulation.active).tolist()))
        if len(whole) == 30:
            at_30 = loader.state_dict()
    return whole, at_30


@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.parametrize("kind", ["files", "shuffled"])
def test_a_later_epoch_is_gone_on_with(world: MakePool, json_files: str, kind: str) -> None:
    """Its own order of files: a state of `datasets` counts only in the epoch in which it was taken."""
    pair = world(2)
    whole, state = pair.run(later, kind, json_files, None, timeout_s=60)[0]
    rest, _ = pair.run(later, kind, json_files, state, timeout_s=60)[0]
    assert rest == whole[30:]
