"""A step of a model that two processes share: fully_shard by hand, accel, and Accelerate."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks.row import Repetition, Skipped
from benchmarks.steps.task import MAX_NORM

BLOCKS, WIDTH, ROWS = 6, 192, 64
#: steps of a repetition
STEPS = 8


class Block(nn.Module):
    """Two layers, in the proportions of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        outputs: Tensor = hidden + self.fall(torch.relu(self.rise(hidden)))
        return outputs


class Blocks(nn.Module):
    """What is shared: each block is gathered by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        outputs: Tensor = self.head(hidden)
        return outputs


def _parts() -> tuple[Any, Any, Tensor]:
    torch.manual_seed(0)
    model = Blocks()
    return model, AdamW(model.parameters(), lr=1e-3), torch.randn(ROWS, WIDTH)


def by_hand() -> Repetition:
    """torch's fully_shard for each block and the model, and its own clipping."""
    from torch.distributed.fsdp import fully_shard

    model, _, inputs = _parts()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model, reshard_after_forward=False)
    optimizer: Optimizer = AdamW(model.parameters(), lr=1e-3)
    parameters = list(model.parameters())

    def step() -> None:
        model(inputs).square().mean().backward()
        nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return _timed(step)


def accel() -> Repetition:
    """accel of this tree."""
    from accel import Accelerator

    return _by_accelerator(Accelerator(cpu=True, strategy="fsdp2"))


def accelerate() -> Repetition:
    """Hugging Face Accelerate, which shards on no CPU unless its state is told to.

    Raises: Skipped if it is not installed.
    """
    if find_spec("accelerate") is None:
        raise Skipped("pip install accelerate==1.15.0")
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    return _by_accelerator(accelerator)


def _by_accelerator(accelerator: Any) -> Repetition:
    model, optimizer, inputs = _parts()
    model, optimizer = accelerator.prepare(model, optimizer)
    parameters = list(model.parameters())

    def step() -> None:
        accelerator.backward(model(inputs).square().mean())
        accelerator.clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return _timed(step)


def _timed(step: Callable[[], None]) -> Repetition:
    def repeat() -> float:
        began = perf_counter()
        for _ in range(STEPS):
            step()
        return (perf_counter() - began) / STEPS

    return repeat
