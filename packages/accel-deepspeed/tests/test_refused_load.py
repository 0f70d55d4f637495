"""A load that DeepSpeed's objects refuse leaves them as they were."""

import copy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, DeepSpeedPlugin
from accel.checkpoint import apply
from accel.checkpoint.loaded_checkpoint import LoadedCheckpoint
from accel_testing import MakePool
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: nox -s deepspeed")


def refused_load(folder: str, stage: int, on_disk: bool) -> tuple[int, list[dict[str, Any]]]:
    """Numbers that this rank keeps for an undo, and all states before a load, behind it, and a step later."""
    import deepspeed

    initialize = deepspeed.initialize

    def initialized(**options: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = initialize(**options)
        made[0].optimizer.params_in_nvme_and_cpu = on_disk  # as offload_param says of a disk
        return made

    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage))
    torch.manual_seed(0)
    given = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).requires_grad_(False))
    with patch.object(deepspeed, "initialize", initialized):
        model, optimizer = accelerator.prepare(given, torch.optim.AdamW(given.parameters()))

    def train() -> None:
        accelerator.backward(model(torch.arange(8.0).view(2, 4)).square().sum())
        optimizer.step()
        optimizer.zero_grad()

    def whole() -> dict[str, Any]:
        return {"model": accelerator.get_state_dict(model), "optimizer": optimizer.state_dict()}

    train()
    accelerator.save_state(folder)
    optimizer.param_groups[0]["lr"] = 0.01
    train()
    for parameter in given[2].parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.zero_()
    found, kept, load = [copy.deepcopy(whole())], list[int](), LoadedCheckpoint.load_model

    def noted(function: Any, *args: Any, **ways: Any) -> Any:
        kept.extend(one.numel() for one in leaves(args) if isinstance(one, Tensor) and one.dim())
        return partial(function, *args, **ways)

    def refuse(checkpoint: LoadedCheckpoint, name: str, loaded: nn.Module) -> None:
        load(checkpoint, name, loaded)
        for part in ("model", "optimizer"):
            assert not same(whole()[part], found[0][part])
        raise ValueError("no")

    with (
        patch.object(LoadedCheckpoint, "load_model", refuse),
        patch.object(apply, "partial", noted),
        pytest.raises(RuntimeError, match="no"),
    ):
        accelerator.load_state(folder)
    found.append(copy.deepcopy(whole()))
    train()
    return sum(kept), [*found, copy.deepcopy(whole())]


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def leaves(value: Any) -> list[Any]:
    """Tensors, rates, counts and scales."""
    if isinstance(value, dict):
        value = list(value.values())
    return [one for inner in value for one in leaves(inner)] if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize(("stage", "on_disk"), [(1, False), (2, False), (3, False), (3, True)])
def test_a_load_that_fails_is_undone_by_parts(world: MakePool, tmp_path: Path, stage: int, on_disk: bool) -> None:
    """Each rank would keep all weights and moments on the host; buffers it has anyway. Parts on a disk are whole."""
    for kept, (before, behind, later) in world(2).run(refused_load, str(tmp_path), stage, on_disk):
        assert (kept <= 3 * 4) != on_disk
        assert same(before, behind)
        assert not same(behind, later)
