"""A load that DeepSpeed's objects refuse leaves them as they were, also if their states are on a disk."""

import copy
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from inspect import getclosurevars
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, DeepSpeedPlugin
from accel.checkpoint import apply
from accel.checkpoint.loaded_checkpoint import LoadedCheckpoint
from accel_deepspeed.whole_state import WholeOptimizer
from accel_testing import MakePool
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: nox -s deepspeed")

#: numbers of a part that DeepSpeed puts on a disk, of which each of two ranks has one
SWAPPED = 1 << 18
PLACES: dict[str, dict[str, dict[str, Any]]] = {
    "memory": {},
    "disk": {"offload_optimizer": {}},
    "disk, pipelined": {"offload_optimizer": {"pipeline_read": True, "pipeline_write": True}},
    "disk, frozen weights too": {"offload_optimizer": {}, "offload_param": {"buffer_size": 2 * SWAPPED}},
    "disk, frozen weights only": {"offload_param": {"buffer_size": 2 * SWAPPED}},
}


class Files:
    """Reads and writes files in the place of DeepSpeed's async_io, which needs libaio and a compiler."""

    locked: ClassVar[list[Tensor]] = []

    def __init__(self, **_: Any) -> None:
        self._asked = 0

    def new_cpu_locked_tensor(self, numbers: int, like: Tensor) -> Tensor:
        self.locked.append(torch.empty(numbers, dtype=like.dtype))
        return self.locked[-1]

    def free_cpu_locked_tensor(self, tensor: Tensor) -> None:
        """The other tensors of this process stay where they are."""

    def is_pinned(self, tensor: Tensor) -> bool:
        return any(one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for one in self.locked)

    def async_pread(self, tensor: Tensor, path: str, _: int) -> int:
        tensor.copy_(torch.from_file(path, size=tensor.numel(), dtype=tensor.dtype))
        self._asked += 1
        return 0

    def async_pwrite(self, tensor: Tensor, path: str, _: int) -> int:
        tensor.detach().numpy().tofile(path)
        self._asked += 1
        return 0

    def wait(self) -> int:
        done, self._asked = self._asked, 0
        return done


def refused_load(folder: str, stage: int, place: str) -> dict[str, bool]:
    """What is true of all states before a load, in the middle of it, behind it, and later."""
    import deepspeed

    zero = {name: {"device": "nvme", "nvme_path": f"{folder}/disk", **more} for name, more in PLACES[place].items()}
    config = {"zero_optimization": {"stage": stage, "sub_group_size": SWAPPED, **zero}}
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(config))
    torch.manual_seed(0)
    width = 512 if zero else 16
    given = nn.Sequential(
        nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.Linear(2 * width, width).requires_grad_(False)
    )
    kept, remember = list[Tensor](), WholeOptimizer.remember

    def remembered(of: WholeOptimizer) -> Any:
        put_back = remember(of)
        kept.extend(one for one in leaves(getclosurevars(put_back).nonlocals["kept"]) if isinstance(one, Tensor))
        return put_back

    files = SimpleNamespace(aio_handle=Files)
    loader = "deepspeed.ops.op_builder.cpu.async_io.AsyncIOBuilder.load"
    with (
        patch(loader, lambda *_, **__: files) if zero else nullcontext(),
        patch.object(WholeOptimizer, "remember", remembered),
    ):
        model, optimizer = accelerator.prepare(given, torch.optim.AdamW(given.parameters()))

    def train() -> None:
        accelerator.backward(model(torch.linspace(0, 1, 2 * width).view(2, width)).square().sum())
        optimizer.step()
        optimizer.zero_grad()

    def whole() -> dict[str, Any]:
        return copy.deepcopy({"model": accelerator.get_state_dict(model), "optimizer": optimizer.state_dict()})

    train()
    accelerator.save_state(f"{folder}/saved")
    saved = whole()
    optimizer.param_groups[0]["lr"] = 0.01
    train()
    for parameter in given[2].parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.zero_()
    before, middle, load = whole(), list[bool](), LoadedCheckpoint.load_model

    def noted(function: Any, *args: Any, **ways: Any) -> Any:
        kept.extend(one for one in leaves(args) if isinstance(one, Tensor))
        return partial(function, *args, **ways)

    def refuse(checkpoint: LoadedCheckpoint, name: str, loaded: nn.Module) -> None:
        load(checkpoint, name, loaded)
        middle.append(same(whole(), saved))
        raise ValueError("no")

    with (
        patch.object(LoadedCheckpoint, "load_model", refuse),
        patch.object(apply, "partial", noted),
        pytest.raises(RuntimeError, match="no"),
    ):
        accelerator.load_state(f"{folder}/saved")
    numbers, behind = sum(one.numel() for one in kept), whole()
    train()
    later = whole()
    accelerator.load_state(f"{folder}/saved")
    trained = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in given[:2].parameters())
    frozen = 2 * width * width + width
    return {
        "was loaded in the middle": middle == [True],
        "is undone": same(before, behind),
        "trains on": not same(behind, later),
        "loads at last": same(whole(), saved),
        # half of the weights and of two moments, numbers that fill up parts, and buffers
        "keeps its parts": trained < numbers < 1.5 * trained + frozen + 8 * width,
    }


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def leaves(value: Any) -> list[Any]:
    """Tensors, rates, counts and scales."""
    if isinstance(value, dict):
        value = list(value.values())
    return [one for inner in value for one in leaves(inner)] if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize(("stage", "place"), [(1, "memory"), (2, "memory"), *((3, place) for place in PLACES)])
def test_a_load_that_fails_is_undone_by_parts(world: MakePool, tmp_path: Path, stage: int, place: str) -> None:
    """Each rank would keep all weights and moments on the host."""
    for found in world(2).run(refused_load, str(tmp_path), stage, place):
        assert all(found.values()), found
