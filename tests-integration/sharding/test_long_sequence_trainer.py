"""transformers' Trainer divides sequences, and takes models that arrive divided, as a program for Accelerate."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jobs import start
from repository import ROOT
from suite.soak import in_soak

pytestmark = pytest.mark.skipif(not find_spec("transformers"), reason="a library is not installed")
SCRIPT = ROOT / "tests-integration" / "scripts" / "long_sequence_trainer.py"


def run(folder: Path, sizes: dict[str, int], rows: int, processes: int) -> dict[str, Any]:
    """Losses, norms and learning rates, and the shape of the predictions of an evaluation."""
    ended = start(SCRIPT, json.dumps(sizes), rows, folder, size=processes).end()
    assert ended.code == 0, ended.err
    (line,) = [line for line in ended.out.splitlines() if line.startswith("log ")]
    found: dict[str, Any] = json.loads(line.removeprefix("log "))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "way",
    [
        ({"cp_size": 2}, 4, 2),
        ({"arrives": 2}, 4, 2),
        *in_soak(({"sp_size": 2}, 4, 2), ({"sp_size": 2, "dp_replicate_size": 2}, 2, 4)),
    ],
)
def test_the_trainer_counts_each_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[dict[str, int], int, int]
) -> None:
    """A3: the Trainer divides by what it gathers, and multiplies by the number of processes; in fresh interpreters."""
    monkeypatch.setenv("ACCEL_AS_ACCELERATE", "1")
    wanted, found = run(tmp_path, {}, 4, 1), run(tmp_path, *way)
    assert len(wanted["steps"]) == 4
    assert found["shape"] == wanted["shape"]
    for mine, theirs in zip(found["steps"], wanted["steps"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)
