"""Config files, and files of other programs that start Accelerate."""

from pathlib import Path

import pytest
from accel_compat.migrate.report import Kind
from accel_compat.migrate.source_file import migrate


def test_entries_that_set_nothing_are_named_inside_of_mappings_too(tmp_path: Path) -> None:
    """S182."""
    file = tmp_path / "fsdp.yaml"
    file.write_text(
        "distributed_type: FSDP\nuse_cpu: true\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_min_num_params: 5\ndynamo_config:\n  dynamo_backend: NO\n"
    )
    new = migrate(file).after
    assert "min_num_params: 5" in new.text
    (left_out,) = [note.words for note in new.notes if "left out" in note.words]
    assert left_out.endswith("here: dynamo_config, fsdp_config.fsdp_version, dynamo_config.dynamo_backend")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('containers:\n- command: ["accelerate", "launch"]\n', 2, "a list of words starts Accelerate"),
        ("command:\n  - accelerate\n  - launch\n", 2, "a list of words starts Accelerate"),
    ],
)
def test_a_file_that_stays_says_what_needs_a_hand(text: str, line: int, words: str, tmp_path: Path) -> None:
    """S182."""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    new = migrate(file).after
    assert new.text == text
    (note,) = new.notes
    assert (note.line, note.kind) == (line, Kind.BY_HAND)
    assert words in note.words
