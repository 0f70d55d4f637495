"""What libraries ask of a DeepSpeed config."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from accel_deepspeed.config_queries import HfDeepSpeedConfig

CONFIG: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "overlap_comm": False},
    "train_batch_size": "auto",
}


@pytest.mark.parametrize("form", ["mapping", "file", "path", "base64"])
def test_a_config_of_any_form_answers_alike(form: str, tmp_path: Path) -> None:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(CONFIG))
    coded = base64.urlsafe_b64encode(json.dumps(CONFIG | {"long": "x" * 999}).encode()).decode()
    given: Any = {"mapping": CONFIG, "file": str(file), "path": file, "base64": coded}[form]
    config = HfDeepSpeedConfig(given)
    assert (config.is_zero2(), config.is_zero3(), config.is_offload()) == (False, True, True)
    assert config.get_value("zero_optimization.stage") == 3
    assert config.get_value("zero_optimization.offload_param.device.deeper", "none") == "none"
    assert config.get_value("optimizer.params.lr") is None
    assert config.find_config_node("zero_optimization.stage") == (config.config["zero_optimization"], "stage")
    assert config.find_config_node("optimizer.params.lr") == (None, "lr")
    truths = [config.is_true(name) for name in ("train_batch_size", "zero_optimization.overlap_comm", "fp16")]
    lies = [config.is_false(name) for name in ("train_batch_size", "zero_optimization.overlap_comm", "fp16")]
    assert (truths, lies) == ([True, False, False], [False, True, False])


def test_a_part_is_removed_from_a_copy() -> None:
    config = HfDeepSpeedConfig(CONFIG)
    config.del_config_sub_tree("zero_optimization.offload_param", must_exist=True)
    config.del_config_sub_tree("zero_optimization.offload_param")
    assert not config.is_offload()
    assert "offload_param" in CONFIG["zero_optimization"]
    with pytest.raises(ValueError, match=r"has no zero_optimization\.offload_param"):
        config.del_config_sub_tree("zero_optimization.offload_param", must_exist=True)


@pytest.mark.parametrize("given", ["nowhere.json", "W10=", b"x"])
def test_what_is_no_config_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a DeepSpeed config"):
        HfDeepSpeedConfig(given)
