"""Sharded training has the numbers of one process; the loop does not change."""

from itertools import chain
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel_amp import LossScaler, local_part
from accel_testing import MakePool
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import DataLoader, TensorDataset
from trained_runs import Trained, assert_same
from whole_tensors import whole

WIDTH, SAMPLES = 8, 48


class Decoder(nn.Module):
    """Tied weights, frozen weights, a number, and a list of blocks."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(3)])
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=dtype).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        self.head = nn.Linear(WIDTH, 11, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.frozen(self.embedding(tokens))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden)) * self.scale
        outputs: Tensor = self.head(hidden)
        return outputs


class Loop(NamedTuple):
    every: int = 1
    precision: str = "no"
    weighted: bool = False


def train(strategy: str, ways: dict[str, Any], loop: Loop) -> Trained:
    every, precision, weighted = loop
    accelerator = Accelerator(
        cpu=True, strategy=strategy, mixed_precision=precision, gradient_accumulation_steps=every, **ways
    )
    torch.manual_seed(accelerator.process_index)  # the weights of rank 0 count
    model = Decoder(torch.float64 if precision == "no" else torch.float32)
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.scale, *model.blocks.parameters()], "weight_decay": 0.1},
            {"params": [model.embedding.weight], "lr": 0.02},
        ],
        lr=0.01,
    )
    tokens = torch.arange(SAMPLES * 3).view(SAMPLES, 3) * 7 % 11
    batch = 12 // accelerator.run.mesh.data_size
    loader = DataLoader(TensorDataset(tokens), batch_size=batch)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, norms = [], []
    for _ in range(2):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                outputs = model(inputs)
                how = "sum" if weighted else "mean"
                loss = nn.functional.cross_entropy(outputs.flatten(0, 1), (inputs * 3 % 11).flatten(), reduction=how)
                accelerator.backward(loss, weight=inputs.numel() if weighted else None)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "sum" if weighted else "mean").item())
    return Trained(losses, norms, {name: whole(value) for name, value in model.state_dict().items()})


@pytest.mark.parametrize("loop", [Loop(), Loop(every=3), Loop(every=3, weighted=True)], ids=str)
@pytest.mark.parametrize("reshard", [True, False])
def test_two_ranks_that_share_all_weights_train_as_one(world: MakePool, loop: Loop, reshard: bool) -> None:
    """T10: losses, norms and weights, with tied, frozen and single-number parameters."""
    ways = {"fsdp_plugin": FullyShardedDataParallelPlugin(reshard_after_forward=reshard)}
    for found in world(2).run(train, "fsdp2", ways, loop):
        assert_same(found, train("auto", {}, loop), 1e-9)


@pytest.mark.parametrize("loop", [Loop(), Loop(every=3, weighted=True)], ids=str)
def test_copies_that_are_sharded_themselves_train_as_one(world: MakePool, loop: Loop) -> None:
    ways = {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)}
    for found in world(4).run(train, "auto", ways, loop):
        assert_same(found, train("auto", {}, loop), 1e-9)


#: windows of micro-batches: the blocks that each uses, or None if it has no backward
Windows = list[list[tuple[int, ...] | None]]


class Skipping(nn.Module):
    """Blocks of which micro-batches use those that they name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4, dtype=torch.float64) for _ in range(5)])
        self.head = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, x: Tensor, used: tuple[int, ...]) -> Tensor:
        for block in used:
            x = x + torch.tanh(self.blocks[block](x))
        result: Tensor = self.head(x)
        return result


class Accumulated(NamedTuple):
    windows: Windows
    exchanges: int
    clip: bool = True
    #: whether others are put in the places of the model's parameters before the optimizer is made
    replaced: bool = False
    #: whether the model is prepared again, when all was forgotten
    again: bool = False


def accumulated(ways: dict[str, Any], loop: Accumulated) -> tuple[int, dict[str, Tensor]]:
    """The number of exchanges by all_reduce of more than a norm, and the weights after the windows."""
    windows, _, clip, replaced, again = loop
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(windows[0]), **ways)
    torch.manual_seed(0)
    model, size = accelerator.prepare(Skipping()), accelerator.num_processes
    if again:
        accelerator.free_memory()
        model = accelerator.prepare(model)
    if replaced:
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.1))
    with patch.object(torch.distributed, "all_reduce", wraps=torch.distributed.all_reduce) as all_reduce:
        for number, used in enumerate(chain(*windows)):
            rows = torch.linspace(-1, 2, 16, dtype=torch.float64).view(4, 4).roll(number, 0)
            with accelerator.accumulate(model):
                mine = rows[4 // size * accelerator.process_index :][: 4 // size]
                if used is not None:
                    accelerator.backward(model(mine, used).square().mean())
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    large = [call for call in all_reduce.call_args_list if call.args[0].numel() > 1]
    return len(large), {name: whole(value) for name, value in model.state_dict().items()}


ALL = (0, 1, 2, 3, 4)
#: windows, and the exchanges between copies
WINDOWS: dict[str, Accumulated] = {
    "of one": Accumulated([[ALL]], 6),
    "of four": Accumulated([[ALL] * 4], 1),
    "a block is not used at the end": Accumulated([[ALL, ALL, (0, 1), (1,)], [(2,), (3,), (3,), (2,)]], 2),
    "the last is left out": Accumulated([[ALL, (0, 1), ALL, None], [ALL] * 4], 2),
    "the last is left out, not clipped": Accumulated([[ALL, (0, 1), ALL, None], [ALL] * 4], 2, clip=False),
    "of four, prepared again": Accumulated([[ALL] * 4], 1, again=True),
    "of other parameters": Accumulated([[ALL] * 2] * 2, 2, replaced=True),
}


@pytest.mark.parametrize("windows", WINDOWS)
def test_copies_exchange_gradients_once_for_a_window(world: MakePool, windows: str) -> None:
    """torch alone would exchange 24 times in a window of four micro-batches."""
    loop = WINDOWS[windows]
    plugin = FullyShardedDataParallelPlugin(min_num_params=20, auto_wrap_policy="size_based_wrap")
    ways = {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2), "fsdp_plugin": plugin}
    _, weights = accumulated({}, loop)
    for count, found in world(4).run(accumulated, ways, loop):
        assert count == loop.exchanges
        torch.testing.assert_close(found, weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-2), ("fp16", 1e-3)])
def test_half_precision_trains_as_ddp_does(world: MakePool, precision: str, tolerance: float) -> None:
    pool = world(2)
    by_ddp = pool.run(train, "ddp", {}, Loop(precision=precision))[0]
    wanted = Trained(*by_ddp[:2], {name.removeprefix("module."): value for name, value in by_ddp.weights.items()})
    for found in pool.run(train, "fsdp2", {}, Loop(precision=precision)):
        torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)
        assert {value.dtype for value in found.weights.values()} == {torch.float32}


def averaged() -> list[float]:
    """The mean of a gradient of 1 and a gradient of 1/512, which bfloat16 would round to 1/2."""
    accelerator = Accelerator(cpu=True, strategy="fsdp2", mixed_precision="bf16")
    model = accelerator.prepare(nn.Linear(2, 2, bias=False))
    own = 1.0 if accelerator.is_main_process else 1 / 512
    accelerator.backward(model(torch.full((1, 2), own)).sum())
    return whole(cast("Tensor", model.weight.grad)).flatten().tolist()


def test_gradients_of_bf16_are_averaged_in_float32(world: MakePool) -> None:
    assert world(2).run(averaged) == [[(1 + 1 / 512) / 2] * 4] * 2


def averaged_between_copies() -> list[float]:
    """The mean of a gradient of 1 and three of 1/512, which a sum in bfloat16 would round to 1/4."""
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    copies = ParallelismConfig(dp_replicate_size=4, dp_shard_size=1)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=copies, gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(2, 2, bias=False, dtype=torch.bfloat16))
    own = 1.0 if accelerator.is_main_process else 1 / 512
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.full((1, 2), own, dtype=torch.bfloat16)).sum())
    return whole(cast("Tensor", model.weight.grad)).flatten().tolist()


def test_copies_average_in_the_dtype_that_gradients_are_reduced_in(world: MakePool) -> None:
    assert world(4).run(averaged_between_copies) == [[(1 + 4 / 512) / 4] * 4] * 4, "rounded once, to bfloat16"


def overflows() -> tuple[bool, float, list[float]]:
    """Only the part of rank 1 has an infinite gradient."""
    accelerator = Accelerator(cpu=True, strategy="fsdp2", mixed_precision="fp16")
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(1, 4)).sum() / 16)  # at the first scale, 65536, float16 has room for it
    if accelerator.process_index == 1:
        local_part(cast("Tensor", model.weight.grad)).fill_(float("inf"))
    optimizer.step()
    scale = cast("LossScaler", accelerator.scaler).get_scale()
    return accelerator.optimizer_step_was_skipped, scale, whole(model.weight).flatten().tolist()


def test_an_overflow_in_the_part_of_one_rank_skips_the_step_of_all(world: MakePool) -> None:
    for skipped, scale, weights in world(2).run(overflows):
        assert skipped
        assert scale == 32768.0
        assert weights == [1.0] * 16
