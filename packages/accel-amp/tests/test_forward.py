"""What runs in half precision, what comes out, and that a wrapped model is still the user's."""

import copy
import inspect
import io
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from accel_amp import PRECISIONS, AutocastForward, PrecisionPolicy, autocast, unwrap_forward, wrap_forward
from accel_testing import assert_same_numbers
from suite.toy_models import Mlp
from torch import Tensor, nn

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
Pair = namedtuple("Pair", ["first", "second"])


class Output(OrderedDict[str, Any]):
    """As libraries' models return it: its items are attributes too, and it has more than items."""

    loss: Tensor
    logits: Tensor

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__.update(items)
        self.note = "kept"

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


class Nested(nn.Module):
    """Returns its half-precision numbers in every kind of container."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, kind: str = "dict") -> Any:
        y = self.linear(x)
        if kind == "object":
            return Output(loss=y.sum(), logits=y)
        if kind == "user dict":
            return UserDict(logits=y)
        return {"list": [y, (y, "text", None, 3)], "pair": Pair(y, torch.arange(2)), "wide": y.double()}


class Seen(nn.Module):
    """Keeps the dtype in which its linear layer computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.computed_in: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.computed_in.append(y.dtype)
        return y


def policy(name: str) -> PrecisionPolicy:
    return PRECISIONS.load(name).policy


def wrapped(model: nn.Module, name: str = "bf16") -> nn.Module:
    return wrap_forward(model, policy(name), "cpu")


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_layers_compute_in_half_precision_and_outputs_are_float32(name: str) -> None:
    """S68"""
    model = Seen()
    ready = wrapped(model, name)
    assert ready is model
    assert ready(torch.ones(1, 2)).dtype is torch.float32
    assert model.computed_in == [HALF[name]]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    # outside the model nothing has changed
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32


def test_without_mixed_precision_the_model_is_not_touched() -> None:
    model = wrapped(Seen(), "no")
    assert "forward" not in vars(model)
    assert model(torch.ones(1, 2).double().float()).dtype is torch.float32


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_come_back_in_the_dtype_of_the_parameters(name: str) -> None:
    plain, half = Mlp(), Mlp()
    x = torch.linspace(-1, 1, 16).view(2, 8)
    plain(x).sum().backward()
    wrapped(half, name)(x).sum().backward()
    numbers = [{key: parameter.grad for key, parameter in model.named_parameters()} for model in (half, plain)]
    assert_same_numbers(*numbers, atol=0.05)
    assert {grad.dtype for grad in numbers[0].values() if grad is not None} == {torch.float32}


def test_nested_outputs_keep_their_containers_and_whatever_is_not_half() -> None:
    """S68"""
    out = wrapped(Nested())(torch.ones(1, 2))
    first, (second, text, nothing, three) = out["list"]
    assert {first.dtype, second.dtype, out["pair"].first.dtype} == {torch.float32}
    assert (text, nothing, three, type(out["pair"])) == ("text", None, 3, Pair)
    assert out["pair"].second.dtype is torch.int64
    assert out["wide"].dtype is torch.float64


def test_an_output_object_keeps_its_type_and_attributes() -> None:
    """S64, S68: an output with `.loss`."""
    out = wrapped(Nested())(torch.ones(1, 2), kind="object")
    assert type(out) is Output
    assert out.note == "kept"
    assert out.loss.dtype is out["loss"].dtype is out.logits.dtype is torch.float32
    assert list(out) == ["loss", "logits"]
    other = wrapped(Nested())(torch.ones(1, 2), kind="user dict")
    assert type(other) is UserDict
    assert other["logits"].dtype is torch.float32


@dataclass(frozen=True)
class Named:
    hidden: list[Tensor]
    count: int = 3


@dataclass
class Outer:
    logits: Tensor
    inner: Named


class InFields(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.given: Outer | None = None

    def forward(self, x: Tensor) -> Outer:
        self.given = Outer(self.linear(x), Named([self.linear(x)]))
        return self.given


def test_the_fields_of_a_dataclass_are_float32() -> None:
    """S68: what is computed of them outside of the model is not computed in half precision."""
    model = InFields()
    out = wrapped(model)(torch.ones(1, 2))
    assert (type(out), type(out.inner), out.inner.count) == (Outer, Named, 3)
    assert out.logits.dtype is out.inner.hidden[0].dtype is torch.float32
    assert model.given is not None
    assert model.given.logits.dtype is torch.bfloat16  # the model's own object is not changed


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.max(x.bfloat16(), dim=0)


def test_a_named_result_of_torch_keeps_its_fields() -> None:
    out = wrapped(Largest())(torch.tensor([1.0, 3.0]))
    assert (out.values.dtype, out.indices.item()) == (torch.float32, 1)


@pytest.mark.parametrize(("name", "expected"), [("no", torch.float32), *HALF.items()])
def test_code_outside_the_model_can_run_in_the_precision_too(name: str, expected: torch.dtype) -> None:
    """S69"""
    ones = torch.ones(2, 2)
    with autocast(policy(name), "cpu"):
        assert torch.mm(ones, ones).dtype is expected
    assert torch.mm(ones, ones).dtype is torch.float32


def test_wrapping_twice_is_wrapping_once() -> None:
    model = wrapped(Seen())
    forward = model.forward
    assert wrapped(model).forward is forward


def test_the_forward_keeps_its_name_and_signature() -> None:
    model = Nested()
    signature = inspect.signature(model.forward)
    wrapped(model)
    assert inspect.signature(model.forward) == signature
    assert list(signature.parameters) == ["x", "kind"]
    assert model.forward.__name__ == "forward"


def test_unwrapping_gives_the_forward_of_the_class_back() -> None:
    model = wrapped(Seen())
    assert unwrap_forward(model) is model
    assert "forward" not in vars(model)
    assert model(torch.ones(1, 2)).dtype is torch.float32
    assert model.computed_in == [torch.float32]


def test_unwrapping_gives_a_forward_of_the_users_own_back() -> None:
    def own(x: Tensor) -> Tensor:
        return x + 1

    model = nn.Linear(2, 2)
    model.forward = own  # type: ignore[method-assign,assignment] # as scripts do it
    wrapped(model)
    assert isinstance(model.forward, AutocastForward)
    assert unwrap_forward(model).forward is own


def test_a_model_that_was_not_wrapped_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    assert unwrap_forward(model) is model
    assert "forward" not in vars(model)


def through_pickle(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    twin: nn.Module = torch.load(buffer, weights_only=False)
    return twin


@pytest.mark.parametrize("twin_of", [copy.deepcopy, through_pickle])
def test_a_copy_of_a_wrapped_model_computes_with_weights_of_its_own(twin_of: Any) -> None:
    model = wrapped(Seen())
    twin = twin_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    x = torch.ones(1, 2)
    assert_same_numbers(model(x), torch.zeros(1, 2), atol=0)
    assert twin(x).abs().sum().item() > 0
    assert twin(x).dtype is torch.float32
    assert twin.computed_in == [torch.bfloat16] * 2
    assert unwrap_forward(twin)(x).dtype is torch.float32
    assert twin.computed_in[-1] is torch.float32
