"""What libraries do to a prepared model, and optimizers of torch that look at whole tensors, is exact or refused."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel import Accelerator, ParallelismConfig
from accel_parallel.stages.tensor_plan import TensorPlanError, styles_of
from accel_testing import MakePool, stretched
from late_changes import PLAN, WIDTH, Net, loss_of
from torch import Tensor, nn
from whole_tensors import whole

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
#: peft puts a model into two of its own
INSIDE = {f"base_model.model.{name}": style for name, style in PLAN.items()}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp": {"strategy": "ddp"},
    "fsdp2": {"strategy": "fsdp2"},
    "TP": {"parallelism_config": ParallelismConfig(tp_size=2, tp_plan=INSIDE)},
}
Numbers = dict[str, Tensor]


class Loop:
    """A prepared model whose ranks divide a batch of sixteen rows."""

    def __init__(self, layout: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.accelerator = Accelerator(cpu=True, **LAYOUTS[layout])
        mesh = self.accelerator.run.mesh
        self.size, self.index = mesh.data_size, mesh.data_rank(self.accelerator.process_index)
        self.model: Any
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.inner: Any = self.accelerator.unwrap_model(self.model)

    def rows(self, step: int) -> Tensor:
        batch = torch.randn(16, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        return batch.view(self.size, -1, WIDTH)[self.index]

    def train(self, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            self.accelerator.backward(loss_of(self.model(self.rows(step))))
            self.optimizer.step()
            self.optimizer.zero_grad()

    def numbers(self) -> Numbers:
        return {name: whole(value) for name, value in self.inner.state_dict().items()}


def compare(world: MakePool, train: Any, layout: str, *options: Any) -> None:
    wanted = train("one", *options)
    for found in world(2).run(train, layout, *options, timeout_s=stretched(100)):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


# Adapters of peft


def adapted() -> tuple[Any, torch.optim.Optimizer]:
    """A model with two adapters, of which the second is frozen until it is chosen."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["first", "blocks.0"], init_lora_weights=False)
    model: Any = get_peft_model(Net(), config).double()
    model.add_adapter("other", config)
    model.double()
    adapters = [held for name, held in model.named_parameters() if "lora_" in name]
    return model, torch.optim.SGD(adapters, lr=0.1, momentum=0.9)


def choosing(layout: str) -> Numbers:
    loop = Loop(layout, *adapted())
    for step, name in enumerate(("default", "other", "default", "other")):
        loop.inner.set_adapter(name)
        loop.train(2 * step, 2)
    return loop.numbers()


@needs_peft
def test_another_adapter_is_trained_from_then_on(world: MakePool) -> None:
    for layout in ("ddp", "fsdp2", "TP"):
        compare(world, choosing, layout)


def merged(layout: str) -> dict[str, Tensor | str]:
    """What the merged model and the prepared one compute, or why not."""
    loop = Loop(layout, *adapted())
    loop.train(0, 2)
    plain = loop.inner.merge_and_unload()
    found: dict[str, Tensor | str] = {}
    with torch.no_grad():
        for name, model in {"prepared": loop.model, "merged": plain}.items():
            try:
                found[name] = model(torch.ones(3, WIDTH, dtype=torch.float64))
            except (RuntimeError, ValueError) as error:
                found[name] = str(error)
    return found


@needs_peft
def test_merged_adapters_compute_as_on_one_process(world: MakePool) -> None:
    compare(world, merged, "ddp")


@needs_peft
def test_adapters_of_a_sharded_model_are_not_merged_in_silence(world: MakePool) -> None:
    wanted = merged("one")
    for found in world(2).run(merged, "fsdp2", timeout_s=stretched(100)):
        assert "mixed torch.Tensor and DTensor" in str(found["merged"])
        torch.testing.assert_close(found["prepared"], wanted["prepared"], rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_norms_of_single_heads_are_refused_with_divided_heads() -> None:
    """Transformers says in the model itself that its tensor parallelism does not know them."""
    from transformers import CohereConfig, CohereForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    with pytest.raises(TensorPlanError, match=r"self_attn\.q_norm: its weight has a row for each head"):
        styles_of(CohereForCausalLM(CohereConfig(use_qk_norm=True, **sizes)), 2)
    assert styles_of(CohereForCausalLM(CohereConfig(use_qk_norm=False, **sizes)), 2)


# Optimizers that look at whole tensors


def matrices() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Linear(WIDTH, 8, bias=False),
        nn.Tanh(),
        nn.Linear(8, WIDTH, bias=False),
        nn.Linear(WIDTH, 2, bias=False),
    ]
    return nn.Sequential(*layers).double()


def with_rprop(layout: str) -> Numbers:
    model = matrices()
    loop = Loop(layout, model, torch.optim.Rprop(model.parameters(), lr=0.01))
    loop.train(0, 12)
    return loop.numbers()


@pytest.mark.parametrize("layout", ["fsdp2", "ddp"])
def test_rprop_is_exact(world: MakePool, layout: str) -> None:
    compare(world, with_rprop, layout)


def with_muon(layout: str, wide: bool) -> Numbers:
    """torch's Muon computes its matrices in bfloat16, unless its way to ask for that does nothing."""
    model = matrices()
    loop = Loop(layout, model, torch.optim.Muon(model.parameters(), lr=0.02))
    with patch.object(torch.Tensor, "bfloat16", lambda self: self) if wide else nullcontext():
        loop.train(0, 6)
    return loop.numbers()


def test_muon_differs_by_the_rounding_of_its_bfloat16_alone(world: MakePool) -> None:
    compare(world, with_muon, "fsdp2", True)
    wanted = with_muon("one", False)
    for found in world(2).run(with_muon, "fsdp2", False, timeout_s=stretched(100)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.02)
