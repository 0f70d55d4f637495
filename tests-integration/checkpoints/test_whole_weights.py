"""The weights of a sharded model as an ordinary file, and as a whole state dict."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, ParallelismConfig
from accel.checkpoint import whole_weights
from accel_checkpoint import CheckpointError, load_checkpoint_in_model
from accel_testing import MakePool
from safetensors.torch import load_file
from sharded_models import LAYOUTS, Odd, prepared
from torch import Tensor


def written(ways: dict[str, Any], folder: str, safe: bool, limit: int | str) -> tuple[bool, dict[str, Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_weights, "PIECE", 64)  # a few rows at a time
        accelerator, model, _ = prepared(ways)
        path = accelerator.save_model(model, folder, limit, safe_serialization=safe)
        state = accelerator.get_state_dict(model)
    return path is not None, {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("layout", ["fsdp2", "hsdp", "tp", "fsdp2 and tp", "ddp"])
@pytest.mark.parametrize("safe", [True, False])
def test_the_files_of_a_sharded_model_are_those_of_one_process(
    world: MakePool, tmp_path: Path, layout: str, safe: bool
) -> None:
    """T17: the weights of rank 0, in shards, tied tensors once; whole on the main process, and nowhere else."""
    processes, ways = LAYOUTS[layout]
    torch.manual_seed(0)
    wanted = Odd()
    found = world(processes).run(written, ways, str(tmp_path / "model"), safe, 200)
    assert [path for path, _ in found] == [True] + [False] * (processes - 1)
    for rank, (_, state) in enumerate(found):
        assert state.keys() == (wanted.state_dict().keys() if rank == 0 or layout == "ddp" else set())
        assert all(torch.equal(state[name], tensor) for name, tensor in wanted.state_dict().items() if name in state)
    torch.manual_seed(1)
    model = Odd()
    load_checkpoint_in_model(model, tmp_path / "model", strict=True)
    assert all(torch.equal(tensor, wanted.state_dict()[name]) for name, tensor in model.state_dict().items())
    if safe:
        index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
        shards = [load_file(tmp_path / "model" / file) for file in sorted(set(index["weight_map"].values()))]
        assert len(shards) > 1
        assert [name for shard in shards for name in shard if name == "head.weight"] == [], (
            "tied tensors are there once"
        )


def refused(folder: str) -> float:
    accelerator, model, _ = prepared({"strategy": "fsdp2"})
    with pytest.raises(CheckpointError, match="give save_model a folder"):
        accelerator.save_model(model, folder)
    total: float = accelerator.reduce(torch.ones(1)).item()
    return total


def test_after_a_disk_that_refuses_training_may_go_on(world: MakePool, tmp_path: Path) -> None:
    """The main process gathers what is left: no rank waits for it."""
    (tmp_path / "file").write_text("of somebody")
    assert world(2).run(refused, str(tmp_path / "file")) == [2, 2]


def largest() -> tuple[int, int]:
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2))
    model = accelerator.prepare(torch.nn.Linear(1 << 10, 1 << 13, bias=False))
    rows = list(whole_weights.gathered_rows(model.weight, accelerator.run))
    return max(row.nbytes for row in rows), sum(row.nbytes for row in rows)


def test_no_process_gathers_more_than_a_piece_at_a_time(world: MakePool) -> None:
    """A3: of 32 MB."""
    assert world(2).run(largest) == [(whole_weights.PIECE, 1 << 25)] * 2
