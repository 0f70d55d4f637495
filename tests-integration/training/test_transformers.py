"""A script in the style of Transformers' own examples, with a model of theirs."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "no_trainer.py"


@pytest.mark.grid(1)
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_script_without_a_trainer_runs(processes: int, precision: str, tmp_path: Path, forking_python: str) -> None:
    """S12, S13, S62, S64, S84: dict batches, `.loss`, get_scheduler, tqdm, save_pretrained."""
    pytest.importorskip("transformers", reason="Transformers is not installed")
    launch = [forking_python, "-m", "accel_launch", "launch", "--cpu", "-n", str(processes)]
    done = subprocess.run(
        [*launch, "--mixed_precision", precision, str(SCRIPT), "--output_dir", str(tmp_path)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"accuracy (\d\.\d+) of (\d+) of (\d+), torch.float32", done.stdout.strip())
    assert found is not None, done.stdout
    assert found[2] == found[3], "each sample was counted once"
    assert float(found[1]) > 0.75
    bars = [total for total in re.findall(r"\| 0/(\d+) \[", done.stderr) if total != "1"]  # less that of the one shard
    assert len(bars) == 1, "one bar for all processes"
    assert (tmp_path / "model.safetensors").is_file()
