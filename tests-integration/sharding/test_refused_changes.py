"""What nobody can follow around a prepared model is refused in words, on every rank."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from accel import Accelerator
from accel_testing import MakePool
from torch import Tensor, nn


class Words(nn.Module):
    """A table of rows, and a head that can be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 2)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.head(self.table(rows))
        return result


class Loop:
    """A prepared model and its optimizer, which have trained for a step."""

    def __init__(self, strategy: str) -> None:
        self.accelerator = Accelerator(cpu=True, strategy=strategy)
        self.rows = torch.arange(4) + self.accelerator.process_index
        torch.manual_seed(0)
        self.model: Any = Words()
        self.model, self.optimizer = self.accelerator.prepare(self.model, torch.optim.SGD(self.model.parameters(), 0.1))
        self.inner: Any = self.accelerator.unwrap_model(self.model)
        self.step()

    def loss(self) -> Tensor:
        result: Tensor = self.model(self.rows).square().mean()
        return result

    def step(self) -> None:
        self.accelerator.backward(self.loss())
        self.optimizer.step()

    def put_head(self, seed: int) -> list[nn.Parameter]:
        """The parameters of a new head."""
        torch.manual_seed(seed)
        self.inner.head = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        return list(self.inner.head.parameters())


def past_add_param_group(loop: Loop) -> None:
    group = loop.optimizer.param_groups[0]
    loop.inner.late = nn.Linear(2, 2)
    torch.manual_seed(loop.accelerator.process_index)
    loop.inner.late.reset_parameters()
    loop.inner.register_forward_hook(lambda module, inputs, result: module.late(result))
    loop.optimizer.param_groups.append({**group, "params": list(loop.inner.late.parameters())})
    loop.step()


def late_and_not_prepared(loop: Loop) -> None:
    loop.inner.late = nn.Linear(2, 2)
    loop.inner.register_forward_hook(lambda module, inputs, result: module.late(result))
    optimizer = torch.optim.SGD(loop.inner.late.parameters(), 0.1)
    loop.accelerator.backward(loop.loss())
    optimizer.step()


def late_past_the_accelerator(loop: Loop) -> None:
    loop.optimizer.add_param_group({"params": loop.put_head(0)})
    for _ in range(2):
        loop.optimizer.zero_grad()
        loop.loss().backward()  # type: ignore[no-untyped-call]
        loop.optimizer.step()


def two_losses_past_the_accelerator(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    result = loop.model(loop.rows)
    result.square().mean().backward(retain_graph=True)
    result.abs().mean().backward()
    loop.optimizer.step()


def renormalised(loop: Loop) -> None:
    loop.inner.table.max_norm = 1.0
    loop.step()


def some_inputs(loop: Loop) -> None:
    loop.accelerator.backward(loop.loss(), inputs=list(loop.inner.head.parameters()))


def prepared_copy(loop: Loop) -> None:
    loop.accelerator.prepare(deepcopy(loop.inner))


def other_numbers(loop: Loop) -> None:
    weight = loop.inner.head.weight
    torch.utils.swap_tensors(weight, nn.Parameter(weight.detach() * 2))  # type: ignore[no-untyped-call]
    loop.step()


def written_with_gradients(loop: Loop) -> None:
    loop.inner.head.weight[0] = 1.0


def steps_of_adafactor(loop: Loop) -> None:
    adafactor: Any = loop.accelerator.prepare(torch.optim.Adafactor(loop.inner.parameters()))
    loop.optimizer = adafactor
    loop.step()


def sparse_gradients(loop: Loop) -> None:
    loop.accelerator.prepare(nn.Embedding(4, 2, sparse=True))


def words_of(strategy: str, changes: list[Callable[[Loop], None]]) -> list[str]:
    """What each change says."""
    found = []
    for change in changes:
        loop = Loop(strategy)
        try:
            change(loop)
        except (ValueError, RuntimeError) as error:
            found.append(str(error))
        else:
            found.append(f"{change.__name__}: nothing")
        loop.accelerator.free_memory()
    return found


def compare(world: MakePool, strategy: str, wanted: dict[Callable[[Loop], None], str]) -> None:
    for found in world(2).run(words_of, strategy, list(wanted)):
        for said, words in zip(found, wanted.values(), strict=True):
            assert words in said


def test_changes_of_whole_models_are_refused_in_words(world: MakePool) -> None:
    wanted: dict[Callable[[Loop], None], str] = {
        past_add_param_group: "past its add_param_group, and a forward has used numbers of them that ranks have unlike",
        late_and_not_prepared: "this SGD is not prepared, and holds 2 parameters that came to a prepared model later",
        two_losses_past_the_accelerator: "SGD.step: ranks have unlike gradients, and no loss came through",
        renormalised: "table of Words with max_norm",
        some_inputs: "backward(inputs=...) with DistributedDataParallel",
    }
    compare(world, "ddp", wanted)


def test_changes_of_sharded_models_are_refused_in_words(world: MakePool) -> None:
    wanted: dict[Callable[[Loop], None], str] = {
        past_add_param_group: "past its add_param_group, and a forward has used numbers of them that ranks have unlike",
        late_and_not_prepared: "this SGD is not prepared, and holds 2 parameters that came to a prepared model later",
        late_past_the_accelerator: "SGD.step: ranks have unlike gradients, and no loss came through",
        renormalised: "with max_norm",
        prepared_copy: "3 parameters of Words are parts already (table.weight, head.weight, head.bias)",
        other_numbers: "the numbers of a sharded weight were replaced",
        steps_of_adafactor: "torch cannot do the step of Adafactor with sharded parameters",
        sparse_gradients: "with sparse=True: torch's fully_shard cannot reduce sparse gradients",
        written_with_gradients: "do so under torch.no_grad()",
    }
    compare(world, "fsdp2", wanted)


def training_past_the_accelerator() -> Tensor:
    """The weights after steps whose gradients the script has averaged itself, and of a local model beside it."""
    accelerator = Accelerator(cpu=True, strategy="ddp")
    torch.manual_seed(accelerator.process_index)
    model: Any = accelerator.prepare(nn.Linear(2, 1, bias=False))
    local = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, local)]
    rows = torch.ones(3, 2) + accelerator.process_index
    for _ in range(5):
        accelerator.unwrap_model(model)(rows).sum().backward()
        model.weight.grad = accelerator.reduce(model.weight.grad, "mean")
        local(rows).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    result: Tensor = model.weight.detach().clone()
    return result


def test_gradients_that_a_script_averages_itself_are_none_of_our_business(world: MakePool) -> None:
    one, other = world(2).run(training_past_the_accelerator)
    assert torch.equal(one, other)
