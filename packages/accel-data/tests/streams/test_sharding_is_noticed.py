"""A stream that shards itself is not sharded again in silence: it is refused, or told, and the remedy is named."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import webdataset
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_ops import gather_for_metrics
from accel_state import AccumulationState
from accel_testing import MakePool
from numbers_to_load import number, write_tars
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

TARS, OF_EACH = 8, 6
N = TARS * OF_EACH


class ReadsItsRank(IterableDataset[Tensor]):
    """Every n-th number from that of the rank on, and nothing in its attributes says so."""

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, range(dist.get_rank(), N, dist.get_world_size()))


class Around(IterableDataset[Tensor]):
    """A step of a pipeline: a stream inside, and a function."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(one["id"]) for one in self.source)


class Inside(Around):
    """A step that leaves samples as they are."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.source)


def rows(files: list[int]) -> Iterator[dict[str, int]]:
    for file in files:
        yield from ({"id": file * OF_EACH + row} for row in range(OF_EACH))


def from_hugging_face(folder: str) -> Any:
    """A stream of `datasets` with one shard for each tar, whole."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import IterableDataset as Stream

    return Stream.from_generator(rows, gen_kwargs={"files": list(range(TARS))})


def split_by_node(folder: str) -> Any:
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(from_hugging_face(folder), dist.get_rank(), dist.get_world_size())


def tars_of(folder: str) -> list[str]:
    return [str(path) for path in sorted(Path(folder).glob("*.tar"))]


def pipeline(folder: str) -> Any:
    """A pipeline of webdataset, with its stages one by one."""
    return webdataset.DataPipeline(
        webdataset.SimpleShardList(tars_of(folder)),
        webdataset.split_by_node,
        webdataset.split_by_worker,
        webdataset.tarfile_to_samples(),
        webdataset.map(number),
    )


def web(folder: str) -> Any:
    return webdataset.WebDataset(
        tars_of(folder), shardshuffle=False, nodesplitter=webdataset.split_by_node, seed=1
    ).map(number)


SHARDED: dict[str, Callable[[str], Any]] = {
    "reads its rank": lambda folder: ReadsItsRank(),
    "datasets": split_by_node,
    "datasets inside a pipeline": lambda folder: Around(split_by_node(folder)),
    "datasets inside two": lambda folder: Around(Around(split_by_node(folder))),
    "webdataset": web,
    "webdataset, a pipeline": pipeline,
    "webdataset inside a pipeline": lambda folder: Inside(web(folder)),
}


@pytest.fixture(scope="session")
def tars(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tars(tmp_path_factory.mktemp("tars"), TARS, OF_EACH)


class Lines(logging.Handler):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def noticed(kind: str, folder: str, dispatch: bool | None) -> tuple[str, list[str]]:
    """How preparing and reading such a stream is refused, or an empty text, and the warnings of the log."""
    lines, logger = Lines(), logging.getLogger("accel_data")
    logger.addHandler(lines)
    refused = ""
    try:
        plain = DataLoader[Any](SHARDED[kind](folder), 4)
        for _ in prepare_data_loader(plain, transport=TorchDist(), dispatch_batches=dispatch):
            pass
    except ValueError as error:
        refused = str(error)
    finally:
        logger.removeHandler(lines)
    return refused, lines.said


@pytest.mark.parametrize("kind", [kind for kind in SHARDED if kind != "reads its rank"])
def test_what_a_library_shards_is_refused_with_the_remedy(world: MakePool, tars: str, kind: str) -> None:
    """On every rank, so that none waits."""
    (first, _), (second, _) = world(2).run(noticed, kind, tars, None, timeout_s=30)
    assert "already_sharded=True" in first
    assert first == second


@pytest.mark.parametrize("dispatch", [None, False], ids=["rank 0 for all", "every rank"])
def test_first_samples_that_are_unlike_on_the_ranks_are_noticed(
    world: MakePool, tars: str, dispatch: bool | None
) -> None:
    """Refused on every rank, or told on the main process, whoever was to read."""
    (first, told), (second, _) = world(2).run(noticed, "reads its rank", tars, dispatch, timeout_s=30)
    assert "already_sharded=True" in first + " ".join(told)
    assert bool(first) == bool(second)


def served(kind: str, folder: str, workers: int) -> list[int]:
    """What metrics hold of two epochs of a stream that is left alone."""
    transport, accumulation = TorchDist(), AccumulationState()
    plain = DataLoader[Any](SHARDED[kind](folder), 4, num_workers=workers)
    loader = prepare_data_loader(plain, already_sharded=True, transport=transport, accumulation=accumulation)
    found: list[int] = []
    for _ in range(2):
        for batch in loader:
            numbers = batch["id"] if kind == "datasets" else batch
            found += gather_for_metrics(numbers, transport, accumulation.active).tolist()
    return sorted(found)


LIBRARIES = ["datasets", "datasets inside a pipeline", "webdataset", "webdataset, a pipeline"]


@pytest.mark.grid(1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_library_that_shards_is_left_alone_on_request(world: MakePool, tars: str, kind: str, workers: int) -> None:
    """Nodes and workers are its own affair; each sample is served once in each epoch."""
    for found in world(2).run(served, kind, tars, workers, timeout_s=60):
        assert found == sorted([*range(N)] * 2)
