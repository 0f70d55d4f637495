"""A rehearsal against the same program on real processes: bytes, calls, the peak of memory, samples and steps."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rehearse = Callable[..., Any]
PROGRAMS = Path(__file__).parent / "programs"
#: torch's names of exchanges in a real process, and those of the report
NAMES = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "broadcast_": "broadcast",
}
PLAN = "--parallelism_config"
SHARDED, ANY = "--use_fsdp", (1, 2, 4)
#: for twelve programs: numbers of processes, options of the launch, arguments of the program
PROGRAMS_AND_SIZES: dict[str, tuple[tuple[int, ...], list[str], list[str]]] = {
    "ddp": (ANY, ["--gradient_accumulation_steps", "2"], ["--model", "bert"]),
    "fsdp2": (ANY, [SHARDED], ["--model", "llama"]),
    "gpt2": (ANY, [], ["--model", "gpt2"]),
    "bf16": (ANY, ["--mixed_precision", "bf16"], ["--model", "llama"]),
    "adafactor": (ANY, [], ["--model", "t5", "--optimizer", "adafactor"]),
    "recomputation": (ANY, [], ["--model", "vit", "--recompute"]),
    "images": (ANY, [], ["--model", "vit", "--optimizer", "sgd"]),
    "convolutions": (ANY, [], ["--model", "resnet", "--optimizer", "sgd"]),
    "two optimizers": (ANY, [], []),
    "all that saves": (
        ANY,
        [SHARDED, "--mixed_precision", "bf16", "--gradient_accumulation_steps", "2"],
        ["--model", "gpt2", "--recompute"],
    ),
    "copies of parts": ((4,), [SHARDED, PLAN, "dp_replicate_size=2,dp_shard_size=2"], ["--model", "gpt2"]),
    "divided layers": ((2,), [PLAN, "tp_size=2"], ["--model", "llama"]),
    "parts of divided layers": ((4,), [SHARDED, PLAN, "dp_shard_size=2,tp_size=2"], ["--model", "llama"]),
}
CASES = [(name, count) for name, (counts, _, _) in PROGRAMS_AND_SIZES.items() for count in counts]
#: the program, if it is another than train.py
PROGRAM = {"two optimizers": "gan.py"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_a_rehearsal_tells_the_truth(name: str, tmp_path: Path, rehearse: Rehearse) -> None:
    _compare(name, 2, tmp_path, rehearse)


@pytest.mark.timeout(900)
@pytest.mark.soak(only=True)
@pytest.mark.parametrize(("name", "count"), CASES)
def test_every_rehearsal_tells_the_truth(name: str, count: int, tmp_path: Path, rehearse: Rehearse) -> None:
    _compare(name, count, tmp_path, rehearse)


def _compare(name: str, count: int, folder: Path, rehearse: Rehearse) -> None:
    pytest.importorskip("transformers")
    _, options, arguments = PROGRAMS_AND_SIZES[name]
    script = PROGRAMS / PROGRAM.get(name, "train.py")
    launch = [
        sys.executable,
        "-m",
        "accel",
        "launch",
        "-n",
        str(count),
        "--cpu",
        *options,
        str(PROGRAMS / "measure.py"),
    ]
    for measured, steps in (("memory", ["--steps", "3"]), ("exchanges", [])):
        words = [*launch, measured, str(folder), str(script), *arguments, *steps]
        subprocess.run(words, check=True, capture_output=True, timeout=500)
    found = rehearse(script, "--cpu", "-n", str(count), *options, arguments=tuple(arguments))
    assert found.code == 0, found.words
    real = [json.loads((folder / f"exchanges-{rank}.json").read_text()) for rank in range(count)]
    assert found.report["samples_per_step"] == len({sample for one in real for sample in one["samples"]})
    for rank in {0, count - 1}:
        said = found.report["ranks"][str(rank)]
        memory = json.loads((folder / f"memory-{rank}.json").read_text())
        for key in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"):
            assert said[key] == memory[key], key
        assert 0.98 * memory["peak_bytes"] < said["peak_bytes"] < 1.05 * memory["peak_bytes"]
        sent = real[rank]["exchanges"]
        assert _sums((NAMES[kind], calls, size) for kind, calls, size in sent) == _sums(
            (one["name"], one["calls"], one["bytes"]) for one in said["exchanges"]
        )
        for key in ("steps_per_epoch", "schedule_ends_at_step"):
            assert found.report[key] == real[rank][key], key


def _sums(exchanges: object) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for name, calls, size in exchanges:  # type: ignore[attr-defined] # a generator of three values each
        before = sums.get(name, (0, 0))
        sums[name] = before[0] + calls, before[1] + size
    return sums
