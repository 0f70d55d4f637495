"""Scripts for language models, run as users run them: sharded by a config file alone, whole or by adapters."""

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "causal_lm.py"
CONFIG = """\
num_processes: 2
use_cpu: true
use_fsdp: true
fsdp_config:
  auto_wrap_policy: transformer_based_wrap
  transformer_layer_cls_to_wrap: GPT2Block
  activation_checkpointing: true
"""


def launched(
    python: str, folder: Path, *options: str, script: tuple[str, ...] = ()
) -> tuple[float, list[int], float, float]:
    """The perplexity, the text that was generated, bytes saved for each byte trained, and logits of what was saved."""
    done = subprocess.run(
        [python, "-m", "accel_launch", "launch", *options, str(SCRIPT), "--output_dir", str(folder), *script],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    words = re.search(r"perplexity (\S+) written \[(.*)\]\nbytes (\d+) trained (\d+) logits (\S+)\n", done.stdout)
    assert words is not None, done.stdout
    written = [int(token) for token in words[2].split(", ")]
    return float(words[1]), written, int(words[3]) / int(words[4]), float(words[5])


@pytest.mark.skipif(not (find_spec("transformers") and find_spec("peft")), reason="a library is not installed")
@pytest.mark.parametrize("adapters", [False, True])
def test_a_script_is_sharded_by_a_config_file_alone(tmp_path: Path, adapters: bool, forking_python: str) -> None:
    """S128, T10: two processes write what one writes; adapters alone are saved, and peft loads them."""
    config = tmp_path / "fsdp.yaml"
    config.write_text(CONFIG)
    script = ("--lora",) if adapters else ()
    wanted = launched(forking_python, tmp_path / "one", "--cpu", "-n", "1", script=script)
    found = launched(forking_python, tmp_path / "two", "--config_file", str(config), script=script)
    assert found[0] == pytest.approx(wanted[0], rel=1e-3)
    assert found[1] == wanted[1]
    assert found[2] == wanted[2] <= 1.1
    assert found[3] == pytest.approx(wanted[3], rel=1e-3)
