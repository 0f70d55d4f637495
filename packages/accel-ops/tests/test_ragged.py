"""Ranks with different data: a result or an error on all of them, and few messages."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_comm import CollectiveMismatch, Transport
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import broadcast, gather, pad_across_processes, reduce
from accel_testing import MakePool, assert_same_numbers
from torch.utils._python_dispatch import TorchDispatchMode

Loopback = Callable[..., list[Any]]
OPERATIONS: list[Callable[..., Any]] = [gather, reduce, broadcast, pad_across_processes]


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def gathered(cases: list[list[torch.Tensor]]) -> list[torch.Tensor | str]:
    transport = TorchDist()
    found: list[torch.Tensor | str] = []
    for case in cases:
        try:
            found.append(gather(case[transport.rank], transport))
        except CollectiveMismatch as error:
            found.append(str(error))
    return found


def test_what_differs_along_dim_0_is_joined(world: MakePool) -> None:
    """Promise T25: also nothing beside something, small or large."""
    shapes = [
        ((350, 2), (658, 2)),
        ((0, 3), (4, 3)),
        ((4,), (0,)),
        ((0,), (0,)),
        ((20_000,), (1,)),
        ((0, 2), (30_000, 2)),
    ]
    cases = [[ones(*one), ones(*other)] for one, other in shapes]
    for found in world(2).run(gathered, cases):
        assert_same_numbers(found, [torch.cat(case) for case in cases], atol=0)


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """Notes how many numbers are in each tensor that an operation of `gather` itself makes without numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self.numels: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.new_empty.default, torch.ops.aten.empty.memory_format):
            self.numels.append(made.numel())
        return made


def empties_of_gather(transport: Transport) -> list[int]:
    made = Made()
    with made:
        gather([ones(40_000 + transport.rank), ones(3 + transport.rank), ones(0)], transport)
    return made.numels


def test_what_is_joined_is_allocated_once(loopback: Loopback) -> None:
    """Only a tensor that no rank has numbers of is made empty: on a GPU room for results would double the peak."""
    assert loopback(2, empties_of_gather) == [[0], [0]]


def test_what_differs_elsewhere_is_an_error_with_what_to_do(world: MakePool) -> None:
    """Promise T25: [2, 350] and [2, 658], dtypes, numbers of dims."""
    padding, objects = "accelerator.pad_across_processes(data, dim=1)", "send them as objects: gather_object"
    cases = [
        ([ones(2, 350), ones(2, 658)], "float32[2, 350]", "float32[2, 658]", padding),
        ([ones(2, 35_000), ones(2, 65_800)], "float32[2, 35000]", "float32[2, 65800]", padding),
        ([ones(2), ones(2, dtype=torch.int64)], "float32[2]", "int64[2]", objects),
        ([ones(0, dtype=torch.float64), ones(2)], "float64[0]", "float32[2]", objects),
        ([ones(), ones(1)], "float32[]", "float32[1]", objects),
    ]
    for found in world(2).run(gathered, [case for case, *_ in cases]):
        for text, (_, first, second, advice) in zip(found, cases, strict=True):
            assert isinstance(text, str)
            lines = text.splitlines()
            assert lines[1].endswith(f": data {first}")
            assert lines[2].endswith(f": data {second}")
            assert advice in lines[3]


def padded_and_gathered() -> torch.Tensor:
    transport = TorchDist()
    x = ones(2, 658 if transport.rank else 350)
    found: torch.Tensor = gather(pad_across_processes(x, transport, dim=1), transport)
    return found


def test_the_advice_of_the_error_helps(world: MakePool) -> None:
    """Promise T25, feature row S80."""
    whole = ones(4, 658)
    whole[:2, 350:] = 0
    for found in world(2).run(padded_and_gathered):
        assert_same_numbers(found, whole, atol=0)


def calls_of(transport: Any, operation: Callable[..., Any], data: list[Any]) -> list[str]:
    operation(data[transport.rank % len(data)], transport)
    calls: list[str] = transport.calls
    return calls


X = torch.ones(3, 4)
SMALL: list[Any] = [X, [X, X.long(), X[:0], X[0, 0]], {f"k{number}": X for number in range(200)}, []]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("data", SMALL, ids=["one", "dtypes", "many", "none"])
def test_small_data_of_equal_shapes_is_one_exchange(loopback: Loopback, operation: Any, data: Any) -> None:
    """Promise T25: the data travels with the agreement on it."""
    assert loopback(2, calls_of, operation, [data]) == [["exchange"]] * 2


def test_objects_beside_small_tensors_need_no_message_of_their_own(loopback: Loopback) -> None:
    """Promise T25."""
    data = [[X, [f"{rank}"], {"id": rank}, None] for rank in range(3)]
    assert loopback(3, calls_of, gather, data) == [["exchange"]] * 3


def test_ragged_small_data_is_two_exchanges(loopback: Loopback) -> None:
    """Promise T25: the second one has the shapes."""
    assert loopback(2, calls_of, gather, [[X, X], [X[:1], X]]) == [["exchange"] * 2] * 2
    assert loopback(2, calls_of, pad_across_processes, [[X, X], [X[:1], X]]) == [["exchange"] * 2] * 2


@pytest.mark.parametrize(
    ("operation", "message"),
    [(gather, "all_gather"), (reduce, "all_reduce (mean)")],
)
def test_many_leaves_are_one_message_beside_the_exchange(loopback: Loopback, operation: Any, message: str) -> None:
    """Promise T25: 500 tensors of 480 bytes."""
    many = [torch.ones(12, 10) for _ in range(500)]
    assert loopback(2, calls_of, operation, [many]) == [["exchange", message]] * 2


def test_large_tensors_travel_alone_and_dtypes_of_gather_together(loopback: Loopback) -> None:
    many = [torch.ones(1000, dtype=dtype) for dtype in (torch.float32, torch.int64, torch.bool) for _ in range(5)]
    large = torch.ones(1 << 15)
    assert loopback(2, calls_of, gather, [[*many, large]]) == [["exchange", "all_gather", "all_gather"]] * 2
    found = loopback(2, calls_of, broadcast, [[*many, large]])[0]
    assert found == ["exchange"] + ["broadcast (from rank 0)"] * 4
    assert loopback(2, calls_of, pad_across_processes, [[*many, large]]) == [["exchange"]] * 2


def messages(operation: Callable[..., Any]) -> list[int]:
    transport, found = TorchDist(), []
    for data in (torch.ones(3), [torch.ones(10)] * 30, [torch.ones(12, 10)] * 500):
        before = transport.recorder.number
        operation(data, transport)
        found.append(transport.recorder.number - before)
    return found


@pytest.mark.parametrize(("operation", "most"), [(gather, 2), (reduce, 2), (broadcast, 2)])
def test_gloo_too_carries_few_messages(world: MakePool, operation: Callable[..., Any], most: int) -> None:
    """Promise T25: by the flight recorder's notes of what was sent."""
    assert world(2).run(messages, operation) == [[1, 1, most]] * 2


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls these a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop these
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


def sparse() -> torch.Tensor:
    return torch.ones(3).to_sparse()


def meta() -> torch.Tensor:
    return torch.ones(3, device="meta")


UNUSUAL = {"sparse": sparse, "meta": meta, "quantized": quantized, "jagged": jagged, "nested": nested}


def said(transport: Transport, operation: Callable[..., Any], odd: torch.Tensor, ranks: set[int]) -> str:
    mine = odd if transport.rank in ranks else torch.ones(3)
    try:
        operation({"a": mine}, transport)
    except (CollectiveMismatch, TypeError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_tensor_that_is_not_its_numbers_is_refused_in_words(
    loopback: Loopback, operation: Callable[..., Any], kind: str
) -> None:
    """Promise T25: on every rank, with its place."""
    word = "nested" if kind == "jagged" else kind
    for text in loopback(2, said, operation, UNUSUAL[kind](), {0, 1}):
        assert text.startswith(operation.__name__)
        assert f"cannot send the {word} tensor at data['a']" in text


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", UNUSUAL)
def test_one_rank_with_such_a_tensor_is_an_error_on_all(
    loopback: Loopback, operation: Callable[..., Any], kind: str
) -> None:
    """Promise T25: no rank that receives goes on, and none waits."""
    for text in loopback(2, said, operation, UNUSUAL[kind](), {1}):
        first, second = (line.partition(": ")[2] for line in text.splitlines()[1:3])
        assert first != second, text
