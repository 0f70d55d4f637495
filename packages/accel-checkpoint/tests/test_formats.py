"""Which of the formats on disk are read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accel_checkpoint import load_checkpoint_in_model, save_weights, weight_files
from accel_testing import assert_same_numbers
from saved_files import model


@pytest.mark.parametrize("size", ["10GB", 500])
def test_safetensors_win_over_the_other_format_with_one_warning(tmp_path: Path, size: Any) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=size)
    pickled = save_weights(model(0).state_dict(), tmp_path, safe_serialization=False)
    fresh = model(2)
    with pytest.warns(UserWarning, match="two formats") as warned:
        load_checkpoint_in_model(fresh, tmp_path, strict=True)
    read = "model.safetensors" + (".index.json" if size == 500 else "")
    assert [str(one.message) for one in warned] == [
        f"{tmp_path} holds weights in two formats: {read} is read, pytorch_model.bin is not;"
        " remove one of them, or give the path of a file"
    ]
    assert warned[0].filename == __file__
    assert_same_numbers(fresh.state_dict(), model(1).state_dict(), atol=0)
    load_checkpoint_in_model(fresh, pickled, strict=True)
    assert_same_numbers(fresh.state_dict(), model(0).state_dict(), atol=0)


@pytest.mark.parametrize("size", ["10GB", 500])
def test_pickles_in_torchs_old_format_are_read(tmp_path: Path, size: Any) -> None:
    save_weights(model(1).state_dict(), tmp_path, max_shard_size=size, safe_serialization=False)
    for file in weight_files(tmp_path):
        torch.save(torch.load(file), file, _use_new_zipfile_serialization=False)
    fresh = model(2)
    load_checkpoint_in_model(fresh, tmp_path, strict=True)
    assert_same_numbers(fresh.state_dict(), model(1).state_dict(), atol=0)


def test_whole_files_are_preferred_to_indexes_and_safetensors_to_pickles(tmp_path: Path) -> None:
    """Decision 6."""
    wanted = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]
    for name in wanted:
        (tmp_path / name).write_text('{"weight_map": {"a": "config.json"}}')
    (tmp_path / "config.json").touch()
    found = []
    for name in wanted:
        found.append(weight_files(tmp_path)[0].name)
        (tmp_path / name).unlink()
    assert found == ["model.safetensors", "config.json", "pytorch_model.bin", "config.json"]
