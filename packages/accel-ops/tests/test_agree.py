"""Ranks that do not fit together are told so, all of them, before anything is exchanged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_ops import ShapeMismatch, broadcast, gather, pad_across_processes, reduce
from accel_ops.agree import Leaf, require_alike, signature, table
from accel_state.transports.single import Single
from accel_state.transports.torch_dist import TorchDist
from accel_testing import MakeWorld

F, H = torch.float32, torch.bfloat16


def caught(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    try:
        function(*args, **options)
    except (ShapeMismatch, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def gather_each(cases: list[list[Any]]) -> list[str]:
    transport = TorchDist()
    return [caught(gather, case[transport.rank], transport) for case in cases]


def test_gather_refuses_on_every_rank_what_does_not_fit(world: MakeWorld) -> None:
    """Feature rows S78 and S80: other dims, dtypes, numbers of dims, keys and lengths of containers."""
    one, two = torch.ones(2), torch.ones(2, 2)
    found = world(2).run(
        gather_each,
        [
            [torch.ones(4, 7), torch.ones(4, 9)],
            [one, one.to(H)],
            [one, one[0]],
            [{"a": one, "b": two}, {"a": one, "c": two}],
            [[one, one], [one]],
            [{"a": one, "b": one}, {"b": one, "a": one}],
            [[one, "text"], [one, one]],
        ],
    )
    head = "ShapeMismatch: gather needs the same structure, dtypes and dims on all ranks (only dim 0 may differ), found"
    pad = "pad the dim that differs first: accelerator.pad_across_processes(data, dim=1)"
    make_alike = "make them alike on every rank, or send them as objects: gather_object"
    tables = [
        ("data float32[4, 7]", "data float32[4, 9]"),
        ("data float32[2]", "data bfloat16[2]"),
        ("data float32[2]", "data float32[]"),
        ("data['b'] float32[2, 2]", "data['c'] float32[2, 2]"),
        ("data[1] float32[2]", "nothing else"),
        ("data['a'] float32[2], data['b'] float32[2]", "data['b'] float32[2], data['a'] float32[2]"),
        ("data[1] str[]", "data[1] float32[2]"),
    ]
    expected = [
        f"{head}\n  rank 0: {first}\n  rank 1: {second}\n{pad if number == 0 else make_alike}"
        for number, (first, second) in enumerate(tables)
    ]
    assert found == [expected, expected]


def every_operation(tensor: list[torch.Tensor]) -> list[str]:
    transport = TorchDist()
    mine = tensor[transport.rank]
    return [
        caught(reduce, {"loss": mine}, transport, how="sum"),
        caught(broadcast, {"loss": mine}, transport, source=1),
        caught(pad_across_processes, [mine] * (transport.rank + 1), transport),
    ]


def test_other_operations_refuse_too_with_the_table_and_advice(world: MakeWorld) -> None:
    """Reference 2.7, debug mode: here always."""
    rows = [f"\n  rank {rank}: data['loss'] float32[{length}]" for rank, length in enumerate([2, 3, 2])]
    ragged = f"found{''.join(rows)}\n"
    expected = [
        f"ShapeMismatch: reduce (sum) needs equal shapes and dtypes on all ranks, {ragged}"
        "give every rank the same, or use gather",
        f"ShapeMismatch: broadcast (from rank 1) needs equal shapes and dtypes on all ranks, {ragged}"
        "give every rank a tensor of the shape to receive, or use broadcast_object_list",
        "ShapeMismatch: pad_across_processes needs the same structure on all ranks, found"
        "\n  rank 0: data[0] float32[2]"
        "\n  rank 1: data[0] float32[3], data[1] float32[3]"
        "\n  rank 2: data[0] float32[2], data[1] float32[2], data[2] float32[2]",
    ]
    found = world(3).run(every_operation, [torch.ones(2), torch.ones(3), torch.ones(2)])
    assert found == [expected] * 3


def different_operations() -> str:
    transport = TorchDist()
    x = torch.ones(2)
    if transport.rank == 0:
        return caught(gather, x, transport)
    if transport.rank == 1:
        return caught(reduce, x, transport, how="mean")
    return caught(reduce, x, transport, how="max")


def test_different_operations_at_the_same_time_are_refused_on_all_ranks(world: MakeWorld) -> None:
    expected = (
        "ShapeMismatch: ranks called different operations at the same time:"
        "\n  rank 0: gather\n  rank 1: reduce (mean)\n  rank 2: reduce (max)\ncall the same on every rank"
    )
    assert world(3).run(different_operations) == [expected] * 3


def refused_and_then_right() -> list[float]:
    transport = TorchDist()
    caught(gather, torch.ones(1, transport.rank + 1), transport)
    caught(reduce, torch.ones(transport.rank + 1), transport)
    numbers: list[float] = gather(torch.tensor([float(transport.rank)]), transport).tolist()
    return numbers


def test_after_a_refusal_the_ranks_still_agree(world: MakeWorld) -> None:
    assert world(2).run(refused_and_then_right) == [[0.0, 1.0]] * 2


def no_tensors() -> list[str]:
    transport = TorchDist()
    data = {"x": torch.ones(1), "n": [3]}
    return [caught(one, data, transport) for one in (gather, reduce, broadcast, pad_across_processes)]


def test_what_is_no_tensor_is_refused_on_every_rank_with_its_place(world: MakeWorld) -> None:
    names = ["gather", "reduce", "broadcast", "pad_across_processes"]
    expected = [
        f"TypeError: {name} takes tensors in lists, tuples, named tuples and mappings; found a int at data['n'][0]"
        for name in names
    ]
    assert world(2).run(no_tensors) == [expected] * 2


@pytest.mark.parametrize("operation", [gather, reduce, broadcast, pad_across_processes])
def test_alone_too_what_is_no_tensor_is_refused(operation: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"{operation.__name__} takes tensors .* found a str at data\[1\]"):
        operation([torch.ones(1), "text"], Single())


def test_a_signature_has_every_leaf_in_order() -> None:
    data = {"b": [torch.ones(2, 3)], "a": (torch.tensor(1, dtype=torch.int8), None)}
    assert signature(data) == (
        Leaf("['b'][0]", (2, 3), "torch.float32"),
        Leaf("['a'][0]", (), "torch.int8"),
        Leaf("['a'][1]", (), "NoneType"),
    )


def test_a_table_shows_only_what_differs() -> None:
    same = torch.ones(1)
    everyone = [signature([same, torch.ones(n)]) for n in (2, 2, 3)]
    assert table(everyone) == (
        "\n  rank 0: data[1] float32[2]\n  rank 1: data[1] float32[2]\n  rank 2: data[1] float32[3]"
    )


def test_alone_everything_agrees() -> None:
    require_alike("reduce (sum)", [torch.ones(1)], Single(), advice="")


def test_a_leaf_on_another_device_is_another_leaf() -> None:
    """Tensors on different devices travel by different backends: ranks would wait for each other for ever."""
    (here,), (there,) = signature(torch.ones(2)), signature(torch.ones(2, device="meta"))
    assert here != there
    assert str(there) == "data float32[2] on meta"
