"""T31: methods, modules and attributes of the user's model, asked of the container that two processes train in."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from accel_amp import PRECISIONS, PrecisionPolicy
from accel_parallel.computed_tensors import computed_tensors
from accel_parallel.strategies.ddp import Ddp
from accel_state import PartialState
from accel_testing import MakePool, assert_same_numbers
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

X_BF = torch.linspace(-1, 1, 32).view(4, 8)
TARGET_B = torch.tensor([0, 1, 2, 1])


class Model(nn.Module):
    """Computes its loss itself, in several ways."""

    motto = "of the user"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encoder, self.head = nn.Linear(8, 6), nn.Linear(6, 3)
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(()))
        self.temperature = 1.0

    def forward(self, x_BF: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(x_BF).tanh() * self.scale) / self.temperature
        return scores

    def loss(self, x_BF: Tensor, target_B: Tensor) -> Tensor:
        """The loss, by the model's own forward."""
        return cross_entropy(self(x_BF), target_B)

    def loss_of_parts(self, x_BF: Tensor, target_B: Tensor) -> dict[str, list[Tensor]]:
        return {"loss": [cross_entropy(self.head(self.encoder(x_BF).tanh() * self.scale), target_B)]}

    def policy(self, x_BF: Tensor) -> Categorical:
        return Categorical(logits=self(x_BF))

    def losses(self, x_BF: Tensor, target_B: Tensor) -> Iterator[Tensor]:
        yield cross_entropy(self(x_BF), target_B)

    def count(self) -> int:
        return sum(1 for _ in self.parameters())

    def trained(self, x_BF: Tensor, target_B: Tensor) -> float:
        loss = self.loss(x_BF, target_B)
        backward(loss)
        return loss.item()

    def scored(self) -> torch.dtype:
        scores: Tensor = self.head(torch.ones(1, 6))
        return scores.dtype

    @property
    def parts(self) -> list[str]:
        return [name for name, _ in self.named_children()]

    @property
    def broken(self) -> int:
        raise ValueError("a property of the user's")


def backward(loss: Any) -> None:
    loss.backward()


Loss = Callable[[Any, Tensor, Tensor], Tensor]


def by_modules(model: Any, x_BF: Tensor, target_B: Tensor) -> Tensor:
    return cross_entropy(model.head(model.encoder(x_BF).tanh() * model.scale), target_B)


def by_policy(model: Any, x_BF: Tensor, target_B: Tensor) -> Tensor:
    log_probabilities_B: Tensor = model.policy(x_BF).log_prob(target_B)
    return -log_probabilities_B.mean()


WAYS: dict[str, Loss] = {
    "a method that calls the forward": lambda model, x_BF, target_B: model.loss(x_BF, target_B),
    "a method that calls modules": lambda model, x_BF, target_B: model.loss_of_parts(x_BF, target_B)["loss"][0],
    "a distribution": by_policy,
    "a generator": lambda model, x_BF, target_B: next(model.losses(x_BF, target_B)),
    "modules": by_modules,
}


def container(model: nn.Module | None = None, precision: str = "no", **options: Any) -> Any:
    run = PartialState(cpu=True).run
    return Ddp(**options).setup(model or Model(), run, PRECISIONS.load(precision).policy)


def trained_by(way: str, steps: int, micro_batches: int, options: dict[str, Any]) -> dict[str, Tensor]:
    """The weights after steps on this rank's half of the batch; all micro-batches but the last stay on the rank."""
    model = container(**options)
    mine = slice(model._distributed_rank * 2, model._distributed_rank * 2 + 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        with model.no_sync():
            for _ in range(micro_batches - 1):
                backward(WAYS[way](model, X_BF[mine], TARGET_B[mine]))
        backward(WAYS[way](model, X_BF[mine], TARGET_B[mine]))
        optimizer.step()
        optimizer.zero_grad()
        if model._distributed_rank == 0:  # nothing of this is waited for on the other rank
            assert model.count() == 4
            torch.save(model.module.state_dict(), io.BytesIO())
    weights: dict[str, Tensor] = model.module.state_dict()
    return weights


def trained_alone(steps: int, micro_batches: int) -> dict[str, Tensor]:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        for _ in range(micro_batches):
            backward(model.loss(X_BF, TARGET_B))
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_what_is_computed_by_names_of_the_model_trains_as_one_process(
    world: MakePool, way: str, micro_batches: int
) -> None:
    """S190."""
    zero, one = world(2).run(trained_by, way, 3, micro_batches, {})
    assert_same_numbers(zero, one, atol=0)
    assert_same_numbers(zero, trained_alone(3, micro_batches), atol=1e-6)


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_options_of_the_container_hold_for_methods(world: MakePool, options: dict[str, Any]) -> None:
    zero, one = world(2).run(trained_by, "a method that calls modules", 3, 1, options)
    assert_same_numbers(zero, one, atol=0)
    assert_same_numbers(zero, trained_alone(3, 1), atol=1e-6)


class Counting(Model):
    """Has a buffer that each rank would change in its own way, and that is used in the graph."""

    def loss(self, x_BF: Tensor, target_B: Tensor) -> Tensor:
        loss = super().loss(x_BF, target_B)
        self.scale = self.scale + x_BF.mean()
        return loss


def with_buffers() -> tuple[Tensor, Tensor, Tensor]:
    model = container(Counting())
    mine = slice(model._distributed_rank * 2, model._distributed_rank * 2 + 2)
    loss = model.loss(X_BF[mine], TARGET_B[mine])
    own = model.scale.clone()
    backward(loss)
    sent = model.scale.clone()
    with torch.no_grad():  # no rank waits for the other
        if model._distributed_rank == 0:
            model.loss(X_BF, TARGET_B)
    return own, sent, model.encoder.weight.grad


def test_buffers_are_those_of_rank_zero_when_the_backward_has_ended(world: MakePool) -> None:
    (own, sent, gradient), (own_of_one, sent_to_one, _) = world(2).run(with_buffers)
    assert own != own_of_one
    assert own == sent == sent_to_one
    model = Model()
    backward(model.loss(X_BF, TARGET_B))
    assert_same_numbers(gradient, model.encoder.weight.grad, atol=1e-6)


class Access(NamedTuple):
    read: tuple[Any, ...]
    set_on_the_model: bool
    has: tuple[bool, ...]
    computed_in: torch.dtype
    errors: tuple[str, ...]


def error_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (AttributeError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def accessed() -> Access:
    model = container(precision="bf16")
    model.temperature = 2.0
    model.of_nobody = 1
    return Access(
        (model.motto, model.parts, model.count(), model.loss.__doc__, model.encoder is model.module.encoder),
        model.module.temperature == 2.0 and not hasattr(model.module, "of_nobody"),
        (hasattr(model, "loss"), hasattr(model, "generate")),
        model.scored(),
        (
            error_of(lambda: model.generate),
            error_of(lambda: model.broken),
            error_of(lambda: model.trained(X_BF, TARGET_B)).split(";")[0],
        ),
    )


def test_names_that_the_container_lacks_are_those_of_the_model(world: MakePool) -> None:
    for rank, found in enumerate(world(2).run(accessed)):
        assert found == Access(
            ("of the user", ["encoder", "head"], 4, "The loss, by the model's own forward.", True),
            True,
            (True, False),
            torch.bfloat16,
            (
                "AttributeError: 'Model' object has no attribute 'generate'",
                "ValueError: a property of the user's",
                f"RuntimeError: Model.trained called backward itself: its gradients stay on rank {rank}, as the"
                " container learns of a backward by what a method returns",
            ),
        )


def copied() -> tuple[Tensor, Tensor, Tensor]:
    model = container()
    model.encoder(X_BF)  # its hook must not take the container along
    inner = copy.deepcopy(model.module)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    mine = slice(model._distributed_rank * 2, model._distributed_rank * 2 + 2)
    gradients = []
    for again in (copy.deepcopy(model), loaded):
        backward(again.loss(X_BF[mine], TARGET_B[mine]))
        gradients.append(again.encoder.weight.grad)
    backward(inner.encoder(X_BF).sum())
    assert model.encoder.weight.grad is None
    return gradients[0], gradients[1], inner.encoder.weight.grad


def test_copies_exchange_gradients_if_they_are_of_the_container(world: MakePool) -> None:
    model = Model()
    backward(model.loss(X_BF, TARGET_B))
    for copied_gradient, loaded_gradient, _ in world(2).run(copied):
        assert_same_numbers(copied_gradient, model.encoder.weight.grad, atol=1e-6)
        assert_same_numbers(loaded_gradient, model.encoder.weight.grad, atol=1e-6)


def compiled() -> Tensor:
    model: Any = torch.compile(container(), backend="eager")
    rank = model._distributed_rank
    mine = slice(rank * 2, rank * 2 + 2)
    backward(model.loss(X_BF[mine], TARGET_B[mine]))
    gradient: Tensor = model.encoder.weight.grad.clone()
    backward(model(X_BF[mine]).sum())
    return gradient


def test_a_compiled_container_has_the_methods_too(world: MakePool) -> None:
    model = Model()
    backward(model.loss(X_BF, TARGET_B))
    for gradient in world(2).run(compiled):
        assert_same_numbers(gradient, model.encoder.weight.grad, atol=1e-6)


def in_joined_ranks() -> tuple[str, Tensor]:
    ddp = Ddp()
    model: Any = ddp.setup(Model(), PartialState(cpu=True).run, PrecisionPolicy())
    with_no_buffers: Any = Ddp(broadcast_buffers=False).setup(Model(), PartialState(cpu=True).run, PrecisionPolicy())
    rank = model._distributed_rank
    refused = error_of(lambda: _join_once(ddp, model, 1)).split(":")[0]
    _join_once(ddp, with_no_buffers, 1 + rank)
    return refused, with_no_buffers.encoder.weight.detach()


def _join_once(ddp: Ddp, model: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with ddp.joining([model], None):
        for _ in range(steps):
            backward(model.loss(X_BF, TARGET_B))
            optimizer.step()
            optimizer.zero_grad()


def test_methods_of_ranks_with_unequal_data_are_joined_or_refused(world: MakePool) -> None:
    (refused, zero), (refused_too, one) = world(2).run(in_joined_ranks)
    assert refused == refused_too == "ValueError"
    assert_same_numbers(zero, one, atol=0)


class Slotted:
    __slots__ = ("empty", "held")

    def __init__(self, held: object) -> None:
        self.held = held


def test_tensors_of_a_graph_are_found_wherever_they_lie() -> None:
    leaf = torch.ones(2, requires_grad=True)
    computed = leaf * 2
    around: list[object] = [computed]
    around.append(around)
    something: tuple[object, ...] = (
        computed,
        around,
        {"a": (computed,)},
        Slotted([computed]),
        Categorical(logits=leaf + 1),
    )
    for result in something:
        assert computed_tensors(result)
    nothing: tuple[object, ...] = (None, 3, "text", leaf, [leaf], computed.detach(), nn.Linear(1, 1), Slotted(None))
    for result in nothing:
        assert not computed_tensors(result)


def test_the_container_is_that_of_torch(world: MakePool) -> None:
    assert world(2).run(is_of_torch) == [True, True]


def is_of_torch() -> bool:
    return isinstance(container(), DistributedDataParallel)
