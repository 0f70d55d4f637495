"""What a rehearsal prints."""

from typing import Any

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
    assert any("76 GB" in line for line in lines)


def test_a_training_without_a_step_has_no_figures_of_memory() -> None:
    words = table_of(report_of([_notes(gradients_bytes=0)], {"size": 1}, Hardware(memory=80e9)))
    assert "heads do not divide" in words
    assert "76 GB" not in words
    assert "peak" not in words
