"""Methods of a sharded model that compute losses, without a word about them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from accel import Accelerator, ParallelismConfig, TorchDynamoPlugin
from accel_state import release
from accel_testing import MakePool
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy

WIDTH, CLASSES = 4, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(self.inner(hidden))


class Agent(nn.Module):
    """Computes its loss in several ways; `blocks` of them are sharded by themselves."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.entrance = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.shift: Tensor
        self.register_buffer("shift", torch.zeros(()))

    def encode(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.entrance(inputs) + self.shift
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encode(inputs))
        return scores

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self(inputs), targets)

    def loss_of_parts(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"loss": cross_entropy(self.head(self.encode(inputs)), targets)}

    def policy(self, inputs: Tensor) -> Categorical:
        return Categorical(logits=self.head(self.encode(inputs)))

    def failing(self, inputs: Tensor) -> Tensor:
        self.entrance(inputs)
        raise RuntimeError("in a method")

    def count(self) -> int:
        return sum(1 for _ in self.parameters())


WAYS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "by the forward": lambda model, inputs, targets: model.loss(inputs, targets),
    "by modules": lambda model, inputs, targets: model.loss_of_parts(inputs, targets)["loss"],
    "by a distribution": lambda model, inputs, targets: -model.policy(inputs).log_prob(targets).mean(),
}


def trained(
    ways: dict[str, Any], blocks: int, backend: str = "no", asked: Sequence[str] = ()
) -> dict[str, list[Tensor]]:
    """The losses of each way in turn, with an accumulated window, an evaluation and a failure between steps."""
    seen: dict[str, list[Tensor]] = {}
    for way in asked or WAYS:
        release()
        plugin = TorchDynamoPlugin(backend=backend, use_regional_compilation=True)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dynamo_plugin=plugin, **ways)
        raw = Agent(blocks).double()
        model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.5))
        size, index = accelerator.run.mesh.data_size, accelerator.run.mesh.data_rank(accelerator.process_index)
        losses = []
        for step in range(6):
            inputs = torch.linspace(-step, 1, 8 * WIDTH, dtype=torch.float64).view(8, WIDTH).tensor_split(size)[index]
            targets = (torch.arange(8) * 7 % CLASSES).tensor_split(size)[index]
            with accelerator.accumulate(model):
                loss = WAYS[way](model, inputs, targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean"))
            with pytest.raises(RuntimeError, match="in a method"):
                model.failing(inputs)
            with torch.no_grad():
                losses.append(accelerator.reduce(WAYS[way](model, inputs, targets), "mean"))
            parts = [isinstance(parameter, DTensor) for parameter in model.parameters()]
            assert all(parts) if size > 1 else not any(parts), "nothing stays gathered"
            if accelerator.is_main_process:  # nobody waits for the others
                assert model.count() == 4 + 2 * blocks
        seen[way] = losses
    return seen


@pytest.mark.parametrize("blocks", [0, 2])
def test_methods_of_a_sharded_model_train_as_one_process_does(world: MakePool, blocks: int) -> None:
    """S190, T31."""
    wanted = trained({}, blocks)
    for found in world(2).run(trained, {"strategy": "fsdp2"}, blocks):
        torch.testing.assert_close(found, wanted)


def test_methods_of_sharded_copies_and_compiled_blocks_train_as_one(world: MakePool) -> None:
    asked = ("by modules",)
    wanted = trained({}, 2, asked=asked)
    copies = {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)}
    for found in world(4).run(trained, copies, 2, "eager", asked, timeout_s=60):
        torch.testing.assert_close(found, wanted)


def in_bf16() -> tuple[torch.dtype, Tensor]:
    accelerator = Accelerator(cpu=True, strategy="fsdp2", mixed_precision="bf16")
    model = Agent()
    accelerator.prepare(model)
    inputs = torch.linspace(-1, 1, 8 * WIDTH).view(8, WIDTH)
    return model.encode(inputs).dtype, model.loss(inputs, torch.arange(8) % CLASSES).detach()


def test_methods_compute_in_the_precision_of_the_run(world: MakePool) -> None:
    model, inputs = Agent(), torch.linspace(-1, 1, 8 * WIDTH).view(8, WIDTH)
    wanted = model.loss(inputs, torch.arange(8) % CLASSES).detach()
    for dtype, loss in world(2).run(in_bf16):
        assert dtype == torch.bfloat16
        torch.testing.assert_close(loss.float(), wanted, rtol=2e-2, atol=2e-2)
