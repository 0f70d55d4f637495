"""A loader writes whole lines into its consumption log; what they prove is tested in accel-verify."""

import json
from pathlib import Path

from accel_data import ConsumptionLog, prepare_data_loader
from accel_testing import RangeDataset
from torch.utils.data import DataLoader


def test_a_line_is_compact_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "served.jsonl"
    list(prepare_data_loader(DataLoader(RangeDataset(20), 2, shuffle=True), consumption_log=ConsumptionLog(path)))
    lines = path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "end"]
    assert max(map(len, lines)) < 300
