"""What a loop does beside one model's training, under each layout: skipped steps, two models, metrics."""

from typing import Any, cast

import pytest
import torch
from accel import Accelerator, ActivationCheckpointingKwargs, TorchDynamoPlugin
from accel_amp import LossScaler, local_part
from accel_testing import MakePool
from sharded_models import LAYOUTS, Odd, whole
from suite.soak import in_soak
from tiny_blocks import Layer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def overflows(ways: dict[str, Any]) -> tuple[bool, float, bool, bool]:
    """The last rank alone has an infinite gradient, in one of its parts; the step after it is taken."""
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", **ways)
    torch.manual_seed(0)
    raw = Odd()
    model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=1.0))
    before = [whole(parameter) for parameter in model.parameters()]
    accelerator.backward(model(torch.arange(7)) * 1e-3)
    if accelerator.process_index == accelerator.num_processes - 1:
        local_part(cast("Tensor", model.blocks[0].weight.grad)).fill_(float("inf"))
    optimizer.step()
    optimizer.zero_grad()
    skipped, scale = accelerator.optimizer_step_was_skipped, cast("LossScaler", accelerator.scaler).get_scale()
    kept = all(torch.equal(whole(now), then) for now, then in zip(model.parameters(), before, strict=True))
    accelerator.backward(model(torch.arange(7)) * 1e-3)
    optimizer.step()
    return skipped, scale, kept, accelerator.optimizer_step_was_skipped


@pytest.mark.parametrize("layout", ["fsdp2", "fsdp2 and tp", *in_soak("hsdp", "tp")])
def test_an_overflow_in_a_part_of_one_rank_skips_the_step_of_all(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    assert world(processes).run(overflows, ways) == [(True, 32768.0, True, False)] * processes


def adversaries(ways: dict[str, Any]) -> list[Tensor]:
    """The norms and weights of two models of one loss each: the second judges what the first makes of numbers."""
    accelerator = Accelerator(cpu=True, **ways)
    models: list[Any] = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        models.append(Pair())
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in models]
    maker, judge, made, judged = accelerator.prepare(*models, *optimizers)
    mesh, norms = accelerator.run.mesh, list[Tensor]()
    for step in range(3):
        rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        batch = rows.chunk(mesh.data_size)[mesh.data_rank(accelerator.process_index)]
        accelerator.backward((judge(batch) - judge(maker(batch).detach())).square().mean())
        judged.step()
        judged.zero_grad()
        accelerator.backward(judge(maker(batch)).square().mean())
        norms += [accelerator.clip_grad_norm_(model.parameters(), 0.5) for model in (maker, judge)]
        made.step()
        made.zero_grad()
        judged.zero_grad()
    return [*norms, *(whole(parameter) for model in (maker, judge) for parameter in model.parameters())]


class Pair(nn.Module):
    """Two layers that the plan of a layout divides, a layer that it does not, and a number that no layout divides."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6, dtype=torch.float64) for _ in range(2)])
        self.last = nn.Linear(6, 6, dtype=torch.float64)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.blocks[1](torch.tanh(self.blocks[0](rows)))) * self.scale
        return outputs


@pytest.mark.parametrize("layout", ["fsdp2", "hsdp", "tp", *in_soak("fsdp2 and tp")])
def test_two_models_with_an_optimizer_each_train_as_on_one_process(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    wanted = adversaries({})
    for found in world(processes).run(adversaries, ways):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def evaluated(ways: dict[str, Any]) -> Tensor:
    """What the model says of each sample of a data set that no number of ranks divides."""
    accelerator = Accelerator(cpu=True, **ways)
    torch.manual_seed(0)
    raw: Any = Pair()
    rows = torch.randn(23, 6, dtype=torch.float64)
    loader: Any = DataLoader(TensorDataset(rows), batch_size=3)
    model, loader = accelerator.prepare(raw, loader)
    model.eval()
    with torch.no_grad():
        return torch.cat([accelerator.gather_for_metrics(model(batch)) for (batch,) in loader])


@pytest.mark.parametrize("layout", ["fsdp2", "fsdp2 and tp", *in_soak("hsdp", "tp")])
def test_metrics_see_each_sample_once_and_in_order(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    wanted = evaluated({})
    assert len(wanted) == 23
    for found in world(processes).run(evaluated, ways):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def compiled_and_recomputed(ways: dict[str, Any], backend: str, recompute: bool) -> list[Tensor]:
    torch.compiler.reset()
    accelerator = Accelerator(
        cpu=True,
        kwargs_handlers=[ActivationCheckpointingKwargs(blocks=["Layer"])] if recompute else [],
        dynamo_plugin=TorchDynamoPlugin(backend=backend, use_regional_compilation=True),
        **ways,
    )
    torch.manual_seed(0)
    raw: Any = nn.Sequential(*[Layer(6, torch.float64) for _ in range(3)])
    model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.5))
    mesh = accelerator.run.mesh
    for step in range(3):
        rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        batch = rows.chunk(mesh.data_size)[mesh.data_rank(accelerator.process_index)]
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return [whole(value) for value in accelerator.unwrap_model(model).parameters()]


@pytest.mark.parametrize("layout", ["one process", "fsdp2", *in_soak("ddp", "hsdp")])
def test_compiled_blocks_whose_activations_are_computed_again_train_alike(world: MakePool, layout: str) -> None:
    processes, ways = LAYOUTS[layout]
    wanted = compiled_and_recomputed({}, "no", False)
    for found in world(processes).run(compiled_and_recomputed, ways, "aot_eager", True, timeout_s=60):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
