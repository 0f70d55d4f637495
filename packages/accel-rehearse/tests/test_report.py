"""What a rehearsal prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_rehearse.hardware import Hardware
from accel_rehearse.report import report_of, table_of


def _notes(**said: Any) -> dict[str, Any]:
    return {
        "rank": 0,
        "said": {
            "parameters_bytes": 8,
            "gradients_bytes": 8,
            "optimizer_bytes": 16,
            "peak_bytes": 1000,
            "peak_at": {"phase": "backward", "module": "layers.3"},
            "memory_over_step": [{"parameters": 8, "activations": 8}],
            "exchanges": [],
            "flops_by_precision": {"float32": 1},
            "evaluation_peak_bytes": 0,
            **said,
        },
        "loop": {"checkpoint_bytes": 24},
        "calls": [],
        "mistakes": [["heads do not divide", "train.py:7", "fewer ranks"]],
        "refusals": [],
    }


def test_what_is_wrong_comes_first() -> None:
    lines = table_of(report_of([_notes()], {"size": 1}, Hardware(memory=80e9))).splitlines()
    assert lines[1:3] == ["train.py:7: heads do not divide", "  fewer ranks"]
    assert "rank 0: the peak is in the backward of layers.3; exchanges of a step:" in lines
    (row,) = (line for line in lines if "76 GB" in line)
    assert row.split()[-3:] == ["-", "76", "GB"]  # no evaluation
    assert "0 B" not in row


def test_a_training_without_a_step_has_no_figures_of_memory() -> None:
    words = table_of(report_of([_notes(gradients_bytes=0)], {"size": 1}, Hardware(memory=80e9)))
    assert "heads do not divide" in words
    assert "76 GB" not in words
    assert "peak" not in words


@pytest.mark.timeout(300)
@pytest.mark.parametrize("saving", [False, True])
def test_what_a_job_does_already_is_no_way_out(saving: bool, rehearse: Callable[..., Any]) -> None:
    pytest.importorskip("transformers")
    script = Path(__file__).parent / "programs" / "train.py"
    options, arguments = (["--mixed_precision", "bf16"], ["--recompute"]) if saving else ([], [])
    sizes = ["-n", "2", "--ranks", "0", "--memory", "10kB", "--flops", "1e12"]
    found = rehearse(script, *sizes, *options, arguments=("--model", "llama", *arguments))
    assert found.code == 1, found.words
    remedy = next(one["remedy"] for one in found.report["mistakes"] if "for tensors" in one["what"])
    assert ("recomputation" in remedy, "--mixed_precision bf16" in remedy) == (not saving, not saving)
    assert f"1e12/s in {'bfloat16' if saving else 'float32'}" in found.words
    said = found.report["ranks"]["0"]
    assert sum(said["flops_by_precision"].values()) == said["flops"] > 0
