"""Compiled models, and what is refused in words."""

from typing import Any

import pytest
import torch
from accel import (
    Accelerator,
    LocalSGD,
    TorchDynamoPlugin,
)
from accel_state import release
from accel_testing import MakePool, assert_same_numbers
from small_steps import Weights, batch, copied
from suite.toy_models import Mlp
from tiny_blocks import Layer
from torch import Tensor, nn
from torch.optim import SGD

# Compilation


class Blocks(nn.Module):
    """Layers of one kind between two others."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.entrance = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Layer(16) for _ in range(4))
        self.exit = nn.Linear(16, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.3, 0.3, generator=generator)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.entrance(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        outputs: Tensor = self.exit(hidden)
        return outputs


def compiled(
    backend: str | None, regional: bool, precision: str
) -> tuple[list[Weights], tuple[int, int], tuple[str, list[str], bool]]:
    """Weights after each step, how many graphs of how many operations were compiled, and what the model looks like."""
    from torch._dynamo.utils import counters

    release()  # one process runs through all precisions
    torch.compiler.reset()
    counters.clear()
    plugin = TorchDynamoPlugin(backend=backend, use_regional_compilation=regional) if backend is not None else None
    accelerator = Accelerator(cpu=True, mixed_precision=precision, dynamo_plugin=plugin)
    raw = Blocks()
    model, optimizer = accelerator.prepare(raw, SGD(raw.parameters(), lr=0.1))
    weights = []
    for step in range(3):
        inputs, targets = batch(step, accelerator.process_index)
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        weights.append(copied(accelerator.unwrap_model(model)))
    unwrapped = accelerator.unwrap_model(model)
    looks = type(unwrapped).__name__, list(accelerator.get_state_dict(model)), unwrapped is raw
    stats = counters["stats"]
    return weights, (int(stats["unique_graphs"]), int(stats["calls_captured"])), looks


CASES = [("eager", False), ("eager", True), ("aot_eager", False), ("aot_eager", True)]


def all_compiled(precision: str) -> dict[Any, Any]:
    found = {case: compiled(*case, precision) for case in CASES}
    return {"not": compiled(None, False, precision), **found}


@pytest.mark.grid(1)
@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_compiled_model_is_the_same_model(world: MakePool, size: int, precision: str) -> None:
    """S43, T31: its numbers, its class and its keys; like blocks share what is compiled for one of them."""
    for found in world(size).run(all_compiled, precision, timeout_s=90):
        expected, graphs, _ = found["not"]
        assert graphs == (0, 0)
        for case in CASES:
            weights, graphs, looks = found[case]
            # bfloat16 has 8 digits, and a compiled graph may round in other places
            assert_same_numbers(weights, expected, atol=1e-6 if precision == "no" else 2e-3)
            # a block is a linear layer and a tanh; the model has four of them between two linear layers
            assert graphs[0] == 1, case
            assert graphs[1] == 2 if case[1] else graphs[1] >= 10, case
            assert looks == ("Blocks", list(Blocks().state_dict()), True)


def of_torchs_own_classes() -> dict[str, int]:
    """How many graphs were compiled for models, and for blocks, that are instances of torch's classes."""
    from torch._dynamo.utils import counters

    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    blocks = Blocks()
    blocks.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4))
    found = {}
    for name, model, regional in (("a Sequential", layers(), False), ("Sequentials in a list", blocks, True)):
        torch.compiler.reset()
        counters.clear()
        plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=regional)
        Accelerator(cpu=True, dynamo_plugin=plugin).prepare(model)(batch(0, 0)[0])
        found[name] = int(counters["stats"]["unique_graphs"])
    return found


def test_modules_of_torchs_own_classes_are_compiled(world: MakePool) -> None:
    """S43: as torch.compile(model) compiles them."""
    assert world(1).run(of_torchs_own_classes, timeout_s=60) == [{"a Sequential": 1, "Sequentials in a list": 1}]


def refused_compilation() -> list[str]:
    said = []
    asked: list[dict[str, Any]] = [
        {"dynamo_backend": "nobody"},
        {"dynamo_plugin": TorchDynamoPlugin(backend="nobody")},
        {"dynamo_backend": "eager", "dynamo_plugin": TorchDynamoPlugin(backend="eager")},
    ]
    for arguments in asked:
        with pytest.raises(ValueError, match="dynamo_") as refusal:
            Accelerator(cpu=True, **arguments)
        said.append(str(refusal.value))
    by_name = Accelerator(cpu=True, dynamo_backend="EAGER")
    return [*said, str(by_name.settings.compilation.backend)]


def test_backends_that_are_not_known_are_refused(world: MakePool) -> None:
    """A7: with the names of those that are."""
    ((one, other, both, by_name),) = world(1).run(refused_compilation, timeout_s=60)
    for said in (one, other):
        assert "dynamo_backend='nobody': expected one of no, " in said
        assert all(name in said for name in ("aot_eager", "eager", "inductor"))
    assert "dynamo_backend and dynamo_plugin: give one of them" in both
    assert by_name == "eager"


# What is refused


def refused(case: str) -> str:
    accelerator = Accelerator(cpu=True)
    model = Mlp()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.1))
    stranger = Mlp()
    inputs, targets = batch(0, 0)
    try:
        if case == "accumulate":
            with accelerator.accumulate(model, stranger):
                pass
        elif case == "no_sync":
            with accelerator.no_sync(stranger):
                pass
        elif case == "trigger_sync_in_backward":
            with accelerator.trigger_sync_in_backward(stranger):
                pass
        elif case == "join_uneven_inputs":
            with accelerator.join_uneven_inputs([stranger]):
                pass
        elif case == "LocalSGD":
            LocalSGD(accelerator, stranger, 2)
        elif case == "LocalSGD 0":
            LocalSGD(accelerator, model, 0)
        elif case == "clip_grad_norm_":
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        elif case == "clip_grad_value_":
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            accelerator.clip_grad_value_(model.parameters(), 1.0)
        elif case == "weights of unequal loaders":
            with accelerator.join_uneven_inputs([model]):
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets), weight=2)
    except ValueError as error:
        return str(error)
    return "nothing"


REFUSALS = {
    "accumulate": "accumulate needs the models that prepare returned; this Mlp is none of the 1 that",
    "no_sync": "no_sync needs the models that prepare returned",
    "trigger_sync_in_backward": "trigger_sync_in_backward needs the models that prepare returned",
    "join_uneven_inputs": "join_uneven_inputs needs the models that prepare returned",
    "LocalSGD": "needs the models that prepare returned",
    "LocalSGD 0": "local_sgd_steps=0: expected a whole number of at least 1",
    "clip_grad_norm_": "clip_grad_norm_: none of the 4 parameters has a gradient; call it after backward()",
    "clip_grad_value_": "clip_grad_value_: none of the 4 parameters has a gradient",
    "weights of unequal loaders": "inside join_uneven_inputs some may have ended",
}


@pytest.mark.parametrize("size", [1, 2])
def test_what_cannot_be_is_refused_in_words(world: MakePool, size: int) -> None:
    """A7."""
    running = world(size)
    for case, words in REFUSALS.items():
        for said in running.run(refused, case):
            assert words in said, case
