"""What each rank holds of a sharded model after a step."""

import weakref
from collections.abc import Iterable
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel_amp import local_part
from accel_parallel.rank_zero_source import send_tensors
from accel_state import release
from accel_testing import MakePool
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

WIDTH = 64


def held_after_a_step(strategy: str, precision: str) -> int:
    """Bytes of the memory of parameters, gradients and states of the optimizer: of their storages, parts or not."""
    release()
    accelerator = Accelerator(cpu=True, strategy=strategy, mixed_precision=precision)
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(4)])
    model = nn.Sequential(nn.Embedding(1000, WIDTH), nn.Sequential(*blocks), nn.Linear(WIDTH, 1000))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        accelerator.backward(model(torch.arange(8)).square().mean())
        optimizer.step()
    with torch.no_grad():
        model(torch.arange(8))
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    storages = [local_part(tensor).untyped_storage() for tensor in chain(model.parameters(), gradients, states)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def sent_at_the_start(divided: bool) -> list[tuple[int, bool]]:
    """Numbers that are on the device at once before they are sharded, and whether they stay there."""
    layers = ParallelismConfig(tp_size=2, tp_plan={"0.0": "colwise", "0.1": "rowwise"}) if divided else None
    accelerator = Accelerator(cpu=True, strategy="fsdp2", parallelism_config=layers)
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), nn.BatchNorm1d(2))
    sent = []

    def send(tensors: Iterable[Tensor], *places: Any, stay: bool = False, **named: Any) -> None:
        listed = list(tensors)
        if numbers := sum(one.numel() for one in listed if not isinstance(one, DTensor)):
            sent.append((numbers, stay))
        send_tensors(listed, *places, stay=stay, **named)

    with patch("accel_parallel.strategies.fsdp2.send_tensors", send):
        model = accelerator.prepare(model)
    assert {one.shape[0] for one in model.state_dict().values() if isinstance(one, DTensor)} == {2}
    return sent


@pytest.mark.parametrize(("divided", "blocks"), [(False, [6, 8, 4]), (True, [8, 6, 4])])
def test_weights_come_to_the_device_piece_by_piece_and_stay(world: MakePool, divided: bool, blocks: list[int]) -> None:
    """A block at a time, or a layer that ranks divide: nothing of them is sent back to the memory of the host."""
    for sent in world(2).run(sent_at_the_start, divided):
        assert sent == [(numbers, True) for numbers in (5, *blocks)]


def test_two_ranks_hold_little_more_than_half_each(world: MakePool) -> None:
    """T10: at most 55 % of what one process holds, in full precision and with master weights."""
    pool = world(2)
    for precision in ("no", "bf16"):
        alone = held_after_a_step("auto", precision)
        assert alone > 4 * 4 * 250_000, "parameters, gradients and two moments"
        assert all(held <= 0.55 * alone for held in pool.run(held_after_a_step, "fsdp2", precision))


def is_freed() -> bool:
    copies = ParallelismConfig(dp_replicate_size=2, dp_shard_size=1)
    plugin = FullyShardedDataParallelPlugin()
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=copies, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model.scale = nn.Parameter(torch.ones(()))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward((model(torch.ones(2, 4)) * model.scale).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    alive = weakref.ref(model)
    del model, optimizer
    assert alive() is not None
    accelerator.free_memory()
    return alive() is None


def test_free_memory_lets_go_of_a_sharded_model(world: MakePool) -> None:
    """What averages its gradients between copies, what averages its number, and what compares used parameters."""
    assert world(2).run(is_freed) == [True] * 2
