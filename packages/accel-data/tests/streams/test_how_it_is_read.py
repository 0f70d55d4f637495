"""One line of the log says how each stream is read: at the source, by every rank, or by rank 0 for all, and why."""

import logging
from typing import Any

import pytest
import torch
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.plan import logical_shards
from accel_testing import MakePool
from numbers_to_load import NumberStream, ShardableStream
from torch.utils.data import DataLoader

N = 96
WAYS = ("at the source", "by every rank", "by rank 0 for all")


class Files(NumberStream):
    """Has a number of files, and at most as many shards."""

    def __init__(self, numbers: Any, files: int) -> None:
        super().__init__(numbers)
        self.num_shards = files

    def shard(self, num_shards: int, index: int) -> "Files":
        if not 0 <= index < num_shards <= self.num_shards:
            raise IndexError(f"shard {index} of {num_shards}, of {self.num_shards} files")
        files = range(index, self.num_shards, num_shards)
        of_each = [self.numbers[file :: self.num_shards] for file in files]
        return Files([number for numbers in of_each for number in numbers], len(files))


class Seeded(NumberStream):
    """Says by its generator that it comes in one order on all ranks."""

    def __init__(self, numbers: Any) -> None:
        super().__init__(numbers)
        self.generator = torch.Generator().manual_seed(3)


class Lines(logging.Handler):
    """Keeps what was said, and how loud."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelname, record.getMessage()))


def served(dataset: Any, workers: int, dispatch: bool | None) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """What this rank logs of a stream while it is prepared and read twice, and the samples of both passes."""
    lines, logger = Lines(), logging.getLogger("accel_data")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        plain = DataLoader(dataset, 4, num_workers=workers)
        loader = prepare_data_loader(plain, transport=TorchDist(), dispatch_batches=dispatch)
        passes = [[one for batch in loader for one in batch.tolist()] for _ in range(2)]
    finally:
        logger.removeHandler(lines)
    return [(level, text) for level, text in lines.said if any(way in text for way in WAYS)], passes


STREAMS: dict[str, tuple[Any, int, bool | None, str, str]] = {
    "shards": (ShardableStream(range(N)), 0, None, "INFO", "at the source"),
    "shards, workers": (ShardableStream(range(N)), 2, None, "INFO", "at the source"),
    "8 files": (Files(range(N), 8), 0, None, "INFO", "at the source"),
    "a generator": (Seeded(range(N)), 0, None, "INFO", "by every rank"),
    "the script says so": (NumberStream(range(N)), 0, False, "INFO", "by every rank"),
    "nothing is known": (NumberStream(range(N)), 0, None, "INFO", "by rank 0 for all"),
    "the script wants it": (ShardableStream(range(N)), 0, True, "INFO", "by rank 0 for all"),
    "one file": (Files(range(N), 1), 0, None, "WARNING", "by rank 0 for all"),
    "3 files, 4 readers": (Files(range(N), 3), 2, None, "WARNING", "by rank 0 for all"),
    "3 files, 2 readers, as told": (Files(range(N), 3), 0, False, "WARNING", "by every rank"),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_the_main_process_says_once_how_a_stream_is_read(world: MakePool, kind: str) -> None:
    """A way back to rank 0 that the stream did not ask for is a warning."""
    dataset, workers, dispatch, level, way = STREAMS[kind]
    (said, passes), (quiet, others) = world(2).run(served, dataset, workers, dispatch)
    assert quiet == []
    assert [(one, way in text) for one, text in said] == [(level, True)]
    assert type(dataset).__name__ in said[0][1]
    assert [sorted(a + b) for a, b in zip(passes, others, strict=True)] == [[*range(N)]] * 2


def test_a_fallback_says_how_many_shards_there_are_for_how_many_readers(world: MakePool) -> None:
    (said, _), _ = world(2).run(served, Files(range(N), 3), 2, None)
    assert "3" in said[0][1]
    assert "4" in said[0][1]


@pytest.mark.parametrize(
    ("own", "readers", "shards"), [(4, 2, 4), (12, 2, 8), (17, 2, 8), (1009, 3, 24), (None, 3, 24)]
)
def test_shards_are_used_if_they_divide_or_are_eight_for_each_reader(
    own: int | None, readers: int, shards: int
) -> None:
    assert logical_shards(own, readers, even=True) == shards


@pytest.mark.parametrize(("own", "readers", "alone"), [(1, 2, 1), (3, 2, 2), (5, 2, 4), (13, 2, 8), (3, 4, 3)])
def test_few_shards_that_do_not_divide_are_not_used(own: int, readers: int, alone: int) -> None:
    """Unless ranks may end apart, or are one process, of which some readers may have none."""
    assert logical_shards(own, readers, even=True) is None
    assert logical_shards(own, readers, alone=True) == alone


@pytest.mark.parametrize("workers", [0, 2])
def test_thirteen_files_are_shared_or_the_fallback_is_told(world: MakePool, workers: int) -> None:
    """On two ranks; at most twelve logical shards could be shared equally."""
    (said, passes), (_, others) = world(2).run(served, Files(range(N), 13), workers, None)
    assert [sorted(a + b) for a, b in zip(passes, others, strict=True)] == [[*range(N)]] * 2
    ((level, text),) = said
    assert (level, "at the source" in text) in {("INFO", True), ("WARNING", False)}


def test_map_style_data_and_a_process_alone_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "accel_data"):
        for dataset in (range(N), ShardableStream(range(N))):
            loader: Any = prepare_data_loader(DataLoader[Any](dataset, 4))  # type: ignore[arg-type] # a range is data too
            assert len(list(loader)) == N // 4
    assert [one for one in caplog.records if one.name.startswith("accel_data")] == []
