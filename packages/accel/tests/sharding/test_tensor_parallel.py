"""Layers that are divided over ranks train as one process does; the loop does not change."""

from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, ParallelismConfig
from accel_amp import LossScaler, local_part
from accel_parallel.stages.gradient_comparison import GradientComparison
from accel_parallel.stages.tensor_plan import TensorPlanError
from accel_testing import MakePool, RankFailure
from suite.soak import in_soak
from tiny_blocks import Block
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.utils.data import DataLoader, TensorDataset
from whole_tensors import whole

VOCABULARY, WIDTH, LENGTH = 32, 16, 6


class Plain(nn.Module):
    """Tied weights, frozen weights, a number, and norms."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype)
        self.blocks = nn.ModuleList([Block(WIDTH, dtype) for _ in range(2)])
        self.blocks[1].up.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        outputs: Tensor = self.head(hidden)
        return outputs * self.scale


PLAIN_PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "colwise_gather_output"}
SEQUENCE_PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "blocks.*.norm": SequenceParallel(),
    "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
    "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


class Case(NamedTuple):
    every: int = 1
    weighted: bool = False
    precision: str = "no"
    fused_loops: bool = False
    samples: int = 36


class Trained(NamedTuple):
    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]
    same_gradients: bool


def train(case: Case, ways: dict[str, Any]) -> Trained:
    accelerator = Accelerator(cpu=True, mixed_precision=case.precision, gradient_accumulation_steps=case.every, **ways)
    torch.manual_seed(accelerator.process_index)  # the weights of rank 0 count
    dtype = torch.float64 if case.precision == "no" else torch.float32
    model = Plain(dtype)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, foreach=case.fused_loops)
    tokens = torch.arange(case.samples * LENGTH).view(case.samples, LENGTH) * 7 % 31
    batch = 12 // accelerator.run.mesh.data_size
    loader = DataLoader(TensorDataset(tokens), batch_size=batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, norms, same_gradients = [], [], True
    for _ in range(2):
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                outputs = model(inputs)
                how = "sum" if case.weighted else "mean"
                loss = nn.functional.cross_entropy(outputs.flatten(0, 1), (inputs * 3 % 11).flatten(), reduction=how)
                accelerator.backward(loss, weight=inputs.numel() if case.weighted else None)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                    same_gradients &= gradients_of_whole_parameters_agree(model, accelerator)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "sum" if case.weighted else "mean").item())
    weights = {name: whole(value) for name, value in model.state_dict().items()}
    return Trained(losses, norms, weights, same_gradients)


def gradients_of_whole_parameters_agree(model: nn.Module, accelerator: Accelerator) -> bool:
    """Whether ranks that hold a parameter whole, or the same part of it, have the same gradient, to the last bit."""
    tensor = accelerator.run.mesh.tensor
    mine = [
        str(local_part(parameter.grad).sum().item())  # an overflow differs from itself
        for parameter in model.parameters()
        if parameter.grad is not None
        and not (
            isinstance(parameter, DTensor)
            and "tp" in (parameter.device_mesh.mesh_dim_names or ())
            and not parameter.placements[-1].is_replicate()
        )
    ]
    everyone = accelerator.run.transport.all_gather_objects(mine)
    return all(gradients == everyone[rank // tensor * tensor] for rank, gradients in enumerate(everyone))


def assert_same(found: Trained, wanted: Trained, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=tolerance, atol=tolerance)
    assert found.same_gradients


CASES = [Case(), Case(every=3, weighted=True, fused_loops=True)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_that_divide_each_layer_train_as_one(world: MakePool, case: Case) -> None:
    """T10: losses, norms and weights, with tied, frozen and single-number parameters."""
    wanted = train(case, {})
    for found in world(2).run(train, case, {"parallelism_config": ParallelismConfig(tp_size=2, tp_plan=PLAIN_PLAN)}):
        assert_same(found, wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_four_ranks_that_share_divided_layers_train_as_one(world: MakePool, case: Case) -> None:
    config = ParallelismConfig(dp_shard_size=2, tp_size=2, tp_plan=PLAIN_PLAN)
    wanted = train(case, {})
    for found in world(4).run(train, case, {"parallelism_config": config}):
        assert_same(found, wanted)


def test_copies_of_divided_layers_train_as_one(world: MakePool) -> None:
    config = ParallelismConfig(dp_replicate_size=2, tp_size=2, tp_plan=PLAIN_PLAN)
    wanted = train(Case(every=3), {})
    for found in world(4).run(train, Case(every=3), {"parallelism_config": config}):
        assert_same(found, wanted)


@pytest.mark.parametrize("shards", [1, 2])
def test_norms_whose_sequences_are_divided_train_as_one(world: MakePool, shards: int) -> None:
    config = ParallelismConfig(dp_shard_size=shards, tp_size=2, tp_plan=SEQUENCE_PLAN)
    wanted = train(Case(every=2), {})
    for found in world(2 * shards).run(train, Case(every=2), {"parallelism_config": config}):
        assert_same(found, wanted)


@pytest.mark.parametrize(("precision", "tolerance", "shards"), [("bf16", 3e-2, 1), ("fp16", 3e-3, 2)])
def test_half_precision_trains_as_one_process_does(
    world: MakePool, precision: str, tolerance: float, shards: int
) -> None:
    case = Case(precision=precision, samples=96)
    wanted = train(case, {})
    config = ParallelismConfig(dp_shard_size=shards, tp_size=2, tp_plan=PLAIN_PLAN)
    for found in world(2 * shards).run(train, case, {"parallelism_config": config}):
        torch.testing.assert_close(found.losses, wanted.losses, rtol=tolerance, atol=tolerance)
        assert {value.dtype for value in found.weights.values()} == {torch.float32}
        assert found.same_gradients


class Misplaced(nn.Module):
    """Its number meets what each rank has of a divided layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.down = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.down(self.up(inputs) * self.scale)
        return outputs


def misplace(shards: int) -> None:
    plan = {"up": "colwise", "down": "rowwise"}
    config = ParallelismConfig(dp_shard_size=shards, tp_size=2, tp_plan=plan)
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    model = accelerator.prepare(Misplaced())
    accelerator.backward(model(torch.rand(2, 4)).sum())


@pytest.mark.parametrize("shards", [1, *in_soak(2)])
def test_a_whole_parameter_that_meets_divided_activations_is_refused(world: MakePool, shards: int) -> None:
    with pytest.raises(RankFailure, match=r"scale is whole on all 2 ranks .* its gradients differ"):
        world(2 * shards).run(misplace, shards)


class Centred(nn.Module):
    """The gradient of its shift differs between ranks, and adds up to nothing on each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.shift = nn.Parameter(torch.zeros(4))
        self.down = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.up(inputs)
        centred = nn.functional.layer_norm(inputs + self.shift, (4,))[:, : hidden.shape[1]]
        outputs: Tensor = self.down(hidden * centred)
        return outputs


def centre() -> None:
    config = ParallelismConfig(tp_size=2, tp_plan={"up": "colwise", "down": "rowwise"})
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    model = accelerator.prepare(Centred())
    accelerator.backward(model(torch.rand(2, 4)).sum())


def test_unlike_gradients_with_equal_sums_are_refused(world: MakePool) -> None:
    with pytest.raises(RankFailure, match=r"shift is whole on all 2 ranks .* its gradients differ .* random numbers"):
        world(2).run(centre)


class WithSpare(nn.Module):
    """One of its parameters never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        self.spare = nn.Parameter(torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.down(torch.tanh(self.up(inputs)))
        return outputs


def backwards_that_compare() -> list[bool]:
    plan = {"up": "colwise", "down": "rowwise"}
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2, tp_plan=plan))
    model = accelerator.prepare(WithSpare())
    with patch.object(
        GradientComparison, "_largest", autospec=True, side_effect=GradientComparison._largest
    ) as largest:
        counts = []
        for _ in range(10):
            before = largest.call_count
            accelerator.backward(model(torch.ones(2, 4)).sum())
            counts.append(largest.call_count > before)
    return counts


def test_a_parameter_without_gradients_ends_the_comparison(world: MakePool) -> None:
    """Each look is an exchange of the world, and a wait for the device."""
    assert world(2).run(backwards_that_compare) == [[True] * 8 + [False] * 2] * 2


class MisplacedRow(Misplaced):
    """One of two data ranks holds the whole scale, and the other nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def misplace_a_row() -> str:
    plan = {"up": "colwise", "down": "rowwise"}
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2, tp_plan=plan))
    model = accelerator.prepare(MisplacedRow())
    try:
        accelerator.backward(model(torch.rand(2, 4)).sum())
    except TensorPlanError as error:
        return str(error)
    return "no error"


def test_a_part_that_differs_in_one_group_is_refused_in_all(world: MakePool) -> None:
    """Also by ranks that hold nothing of the parameter, and would wait for the others."""
    first, *others = world(4).run(misplace_a_row)
    assert "scale is whole" in first
    assert others == [first] * 3


class Branching(nn.Module):
    """Data rank 0 uses two of its numbers, data rank 1 one, and nobody the third."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(())) for _ in range(3)])

    def forward(self, inputs: Tensor, first: int) -> Tensor:
        outputs: Tensor = self.down(torch.tanh(self.up(inputs)))
        for number in range(first, 2):
            outputs = outputs * self.scales[number]
        return outputs


def branch() -> list[float]:
    plan = {"up": "colwise", "down": "rowwise"}
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2, tp_plan=plan))
    model = Branching()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        accelerator.backward(model(torch.ones(2, 4), accelerator.run.mesh.data_rank(accelerator.process_index)).sum())
        optimizer.step()
        optimizer.zero_grad()
    return [scale.item() for scale in model.scales]


def test_gradients_of_numbers_that_some_data_ranks_use_are_compared(world: MakePool) -> None:
    first, *others = world(4).run(branch)
    assert others == [first] * 3
    assert first[0] != 1.0 != first[1]
    assert first[2] == 1.0


def overflows() -> tuple[bool, float, list[float]]:
    """Only the part of rank 1 has an infinite gradient."""
    config = ParallelismConfig(tp_size=2, tp_plan={"0": "colwise", "1": "rowwise"})
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", parallelism_config=config)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in model:
        nn.init.ones_(cast("Tensor", layer.weight))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(1, 2)).sum() / 16)  # at the first scale, 65536, float16 has room for it
    if accelerator.process_index == 1:
        local_part(cast("Tensor", model[0].weight.grad)).fill_(float("inf"))
    optimizer.step()
    scale = cast("LossScaler", accelerator.scaler).get_scale()
    return accelerator.optimizer_step_was_skipped, scale, whole(cast("Tensor", model[0].weight)).flatten().tolist()


def test_an_overflow_in_one_part_of_a_layer_skips_the_step_of_all(world: MakePool) -> None:
    for skipped, scale, weights in world(2).run(overflows):
        assert skipped
        assert scale == 32768.0
        assert weights == [1.0] * 4
