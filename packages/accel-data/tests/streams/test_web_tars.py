"""Streams of `webdataset`: a list of tars is shared out among ranks and workers, and gone on with."""

import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import webdataset
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from numbers_to_load import number, write_tars
from torch.utils.data import DataLoader

TARS, OF_EACH = 32, 8
N = TARS * OF_EACH
Steps = list[list[int]]


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tars(tmp_path_factory.mktemp("tars"), TARS, OF_EACH)


def stream(kind: str, folder: str) -> Any:
    urls = [str(path) for path in sorted(Path(folder).glob("*.tar"))]
    if kind == "plain":  # its own node splitter refuses several ranks: what shares out has to leave it out
        return webdataset.WebDataset(urls, shardshuffle=False, seed=1).map(number)
    if kind == "nobody splits by node":
        return webdataset.WebDataset(urls, shardshuffle=False, nodesplitter=None, seed=1).map(number)
    if kind == "a pattern":
        return webdataset.WebDataset(f"{folder}/{{000..{TARS - 1:03d}}}.tar", shardshuffle=False, seed=1).map(number)
    if kind == "seven tars":
        return webdataset.WebDataset(urls[:7], shardshuffle=False, seed=1).map(number)
    return webdataset.WebDataset(urls, shardshuffle=10, detshuffle=True, seed=1).map(number)


KINDS = {"plain": N, "nobody splits by node": N, "a pattern": N, "seven tars": 7 * OF_EACH, "tars are shuffled": N}


def prepared(kind: str, folder: str, size: int, workers: int) -> Any:
    plain = DataLoader[Any](stream(kind, folder), size, num_workers=workers)
    return prepare_data_loader(plain, transport=TorchDist(), accumulation=AccumulationState())


def steps_of(loader: Any, stop: int | None = None) -> tuple[Steps, Any]:
    """The samples of each step of the job in a pass, up to a stop, and the state there."""
    found: Steps = []
    for batch in loader:
        found.append(sorted(gather_for_metrics(batch, TorchDist(), loader.accumulation.active).tolist()))
        if len(found) == stop:
            return found, loader.state_dict()
    return found, None


def epochs(kind: str, folder: str, workers: int) -> list[list[int]]:
    loader = prepared(kind, folder, 5, workers)
    return [sorted(chain.from_iterable(steps_of(loader)[0])) for _ in range(2)]


@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_is_served_once_in_each_epoch(world: MakePool, tars: str, kind: str, workers: int) -> None:
    """A2: two ranks, without workers and with two each."""
    for found in world(2).run(epochs, kind, tars, workers, timeout_s=60):
        assert found == [[*range(KINDS[kind])]] * 2


def first_life(kind: str, folder: str, size: int, workers: int) -> tuple[Steps, Steps, Any]:
    """The steps of a whole pass, those up to the tenth batch of another, and the state there."""
    whole, _ = steps_of(prepared(kind, folder, size, workers))
    before, state = steps_of(prepared(kind, folder, size, workers), 10)
    return whole, before, state


def second_life(kind: str, folder: str, size: int, workers: int, state: Any) -> Steps:
    loader = prepared(kind, folder, size, workers)
    loader.load_state_dict(state)
    return steps_of(loader)[0]


@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_goes_on_with_the_tars_on_any_world(world: MakePool, tars: str, workers: int) -> None:
    """On 1, 2 and 4 ranks: tars have no place of their own, so their shards are read again up to there."""
    (whole, before, state), *_ = world(2).run(first_life, "plain", tars, 4, workers, timeout_s=60)
    assert before == whole[:10]
    for size in (1, 2, 4):
        for rest in world(size).run(second_life, "plain", tars, 8 // size, workers, state, timeout_s=60):
            assert sorted(chain(*before, *rest)) == [*range(N)]
            if size == 2:
                assert rest == whole[10:]


def beside(folder: str) -> tuple[int, bool, list[int]]:
    """How many samples a share has, whether the stream has its stages as before, and what it gives itself."""
    source = stream("plain", folder)
    stages = list(source.pipeline)
    loader: Any = prepare_data_loader(DataLoader[Any](source, 4), num_processes=2, process_index=1)
    share = sum(len(batch) for batch in loader)
    return share, source.pipeline == stages, [int(one) for one in source]


def test_the_stream_that_was_given_is_not_changed(world: MakePool, tars: str) -> None:
    """It can be read beside, as a whole."""
    ((share, same, whole),) = world(1, join=False).run(beside, tars)
    assert 0 < share < N
    assert same
    assert whole == [*range(N)]


def told_when_resumed(folder: str) -> list[str]:
    """What is warned of when a pipeline of one process goes on."""
    first, again = (prepared("plain", folder, 4, 0) for _ in range(2))
    for _ in first:
        again.load_state_dict(first.state_dict())
        break
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        next(iter(again))
    return [text for one in told if " are read again " in (text := str(one.message))]


def test_a_warning_names_the_class_of_the_user(world: MakePool, tars: str) -> None:
    (told,) = world(1).run(told_when_resumed, tars)
    assert ["again from WebDataset" in text for text in told] == [True]


def test_a_shuffle_without_a_seed_is_warned_of(tars: str) -> None:
    """A job that is resumed would read other samples."""
    pipeline = stream("plain", tars)
    with pytest.warns(UserWarning, match=r"shuffles without a seed.*shuffle\(n, seed=0\)"):
        prepare_data_loader(DataLoader(pipeline.shuffle(10), batch_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_data_loader(DataLoader(stream("plain", tars).shuffle(10, seed=3), batch_size=4))
