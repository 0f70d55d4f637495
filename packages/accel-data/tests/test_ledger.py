"""A loader writes whole lines into its ledger; what they prove is tested in accel-verify."""

import json
from pathlib import Path

import accel_data
import pytest
from accel_data import Ledger, prepare_data_loader
from accel_testing import RangeDataset
from torch.utils.data import DataLoader


def test_a_line_is_compact_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.jsonl"
    list(prepare_data_loader(DataLoader(RangeDataset(20), 2, shuffle=True), ledger=Ledger(path)))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "end"]
    assert max(map(len, lines)) < 300


@pytest.mark.parametrize("name", ["verify", "Served", "LedgerError"])
def test_names_that_moved_say_where_they_are(name: str) -> None:
    with pytest.raises(
        ImportError, match=rf"accel_data.{name} is accel_verify.ledger.\w+ now: pip install 'accel\[ver"
    ):
        getattr(accel_data, name)
