"""A loader writes whole lines into its consumption log; what they prove is tested in accel-verify."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from accel_data import ConsumptionLog, prepare_data_loader
from suite.toy_models import RangeDataset
from torch.utils.data import DataLoader, IterableDataset


class Files(IterableDataset[int]):
    """A stream of two files."""

    num_shards = 2

    def __init__(self, files: range = range(2)) -> None:
        self.files = files

    def __iter__(self) -> Iterator[int]:
        return (10 * file + place for file in self.files for place in range(4))

    def shard(self, num_shards: int, index: int) -> "Files":
        return Files(self.files[index::num_shards])


def test_a_line_is_compact_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "served.jsonl"
    list(prepare_data_loader(DataLoader(RangeDataset(20), 2, shuffle=True), consumption_log=ConsumptionLog(path)))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "end"]
    assert max(map(len, lines)) < 300


def test_a_stream_without_lines_is_told(tmp_path: Path) -> None:
    path = tmp_path / "served.jsonl"
    loader = prepare_data_loader(
        DataLoader(Files(), 2), num_processes=2, process_index=0, consumption_log=ConsumptionLog(path)
    )
    with pytest.warns(UserWarning, match=r"served\.jsonl gets no line .* dispatch_batches=True lets"):
        list(loader)
    assert not path.exists()
