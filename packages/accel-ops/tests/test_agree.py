"""Ranks that do not fit together are told so, all of them, before anything is exchanged."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_comm import CollectiveMismatch, Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import broadcast, gather, pad_across_processes, reduce
from accel_ops.agree import DIGEST, Agreed, Leaf, agree, agree_alike, signature, table
from accel_ops.flat import Flat
from accel_testing import MakePool

H = torch.bfloat16


def caught(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    try:
        function(*args, **options)
    except (CollectiveMismatch, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def without_sites(text: str) -> str:
    """The text of an error without the lines that called, each of which is in this file."""
    return re.sub(rf" at {re.escape(__file__)}:\d+(?=[:\n])", "", text)


def gather_each(cases: list[list[Any]]) -> list[str]:
    transport = TorchDist()
    return [caught(gather, case[transport.rank], transport) for case in cases]


def test_gather_refuses_on_every_rank_what_does_not_fit(world: MakePool) -> None:
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
        ("data[1] object", "data[1] float32[2]"),
    ]
    expected = [
        f"{head}\n  rank 0: {first}\n  rank 1: {second}\n{pad if number == 0 else make_alike}"
        for number, (first, second) in enumerate(tables)
    ]
    assert [[without_sites(text) for text in one] for one in found] == [expected, expected]
    assert all(len(re.findall(rf"{re.escape(__file__)}:\d+", text)) == 2 for one in found for text in one)


def every_operation(tensor: list[torch.Tensor]) -> list[str]:
    transport = TorchDist()
    mine = tensor[transport.rank]
    return [
        caught(reduce, {"loss": mine}, transport, how="sum"),
        caught(broadcast, {"loss": mine}, transport, source=1),
        caught(pad_across_processes, [mine] * (transport.rank + 1), transport),
    ]


def test_other_operations_refuse_too_with_the_table_and_advice(world: MakePool) -> None:
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
    assert [[without_sites(text) for text in one] for one in found] == [expected] * 3


def different_operations() -> str:
    transport = TorchDist()
    x = torch.ones(2)
    if transport.rank == 0:
        return caught(gather, x, transport)
    if transport.rank == 1:
        return caught(reduce, x, transport, how="mean")
    return caught(reduce, x, transport, how="max")


def test_different_operations_at_the_same_time_are_refused_on_all_ranks(world: MakePool) -> None:
    expected = (
        "CollectiveMismatch: ranks called different operations at the same time:"
        "\n  rank 0: gather\n  rank 1: reduce (mean)\n  rank 2: reduce (max)\ncall the same on every rank"
    )
    found = world(3).run(different_operations)
    assert [without_sites(text) for text in found] == [expected] * 3


def one_line(transport: Transport) -> None:
    gather(torch.ones(1, 2), transport)


def another_line(transport: Transport) -> None:
    gather(torch.ones(1, 3), transport)


def a_third_line(transport: Transport) -> None:
    reduce(torch.ones(1, 3), transport)


def from_different_lines(others: Callable[[Transport], None]) -> str:
    transport = TorchDist()
    return caught(others if transport.rank else one_line, transport)


@pytest.mark.parametrize(("other", "kind"), [(another_line, "ShapeMismatch"), (a_third_line, "CollectiveMismatch")])
def test_an_error_names_the_line_of_each_rank(world: MakePool, other: Callable[[Transport], None], kind: str) -> None:
    """Promise T25: the user's own line, not one of accel's."""
    for text in world(2).run(from_different_lines, other):
        lines = {rank: re.search(rf"rank {rank}.* at {re.escape(__file__)}:(\d+)", text) for rank in (0, 1)}
        found = [int(line[1]) for line in lines.values() if line is not None]
        assert text.startswith(kind)
        assert found == [one.__code__.co_firstlineno + 1 for one in (one_line, other)]


def refused_and_then_right() -> list[float]:
    transport = TorchDist()
    caught(gather, torch.ones(1, transport.rank + 1), transport)
    caught(reduce, torch.ones(transport.rank + 1), transport)
    numbers: list[float] = gather(torch.tensor([float(transport.rank)]), transport).tolist()
    return numbers


def test_after_a_refusal_the_ranks_still_agree(world: MakePool) -> None:
    assert world(2).run(refused_and_then_right) == [[0.0, 1.0]] * 2


TENSORS_ONLY: dict[str, Callable[..., Any]] = {
    "reduce (mean)": reduce,
    "broadcast (from rank 0)": broadcast,
    "pad_across_processes (dim 0)": pad_across_processes,
}


def no_tensors() -> list[str]:
    transport = TorchDist()
    data = {"x": torch.ones(1), "n": [3]}
    return [caught(one, data, transport) for one in TENSORS_ONLY.values()]


def test_what_is_no_tensor_is_refused_on_every_rank_with_its_place(world: MakePool) -> None:
    """By all operations but gather, which takes objects too."""
    expected = [
        f"TypeError: {name} takes tensors in lists, tuples, named tuples and mappings; found a int at data['n'][0]"
        for name in TENSORS_ONLY
    ]
    assert world(2).run(no_tensors) == [expected] * 2


@pytest.mark.parametrize("name", TENSORS_ONLY)
def test_alone_too_what_is_no_tensor_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{re.escape(name)} takes tensors .* found a str at data\[1\]"):
        TENSORS_ONLY[name]([torch.ones(1), "text"], Single())


def test_a_signature_has_every_leaf_in_order() -> None:
    data = {"b": [torch.ones(2, 3)], "a": (torch.tensor(1, dtype=torch.int8), None)}
    assert signature(Flat(data, "reduce")) == (
        Leaf("['b'][0]", (2, 3), "torch.float32"),
        Leaf("['a'][0]", (), "torch.int8"),
        Leaf("['a'][1]", (), "NoneType"),
    )


def test_where_objects_may_come_a_list_without_a_tensor_is_one_leaf() -> None:
    data = [["a", ("b", {"c": 1})], (torch.ones(1), [2, 3]), {"k": [torch.ones(2)], "n": {"m": None}}]
    assert signature(Flat(data, "gather", objects=True)) == (
        Leaf("[0]", (), "object"),
        Leaf("[1][0]", (1,), "torch.float32"),
        Leaf("[1][1]", (), "object"),
        Leaf("[2]['k'][0]", (2,), "torch.float32"),
        Leaf("[2]['n']['m']", (), "object"),
    )


def signed(data: Any) -> Any:
    return signature(Flat(data, "reduce"))


def test_a_table_shows_only_what_differs() -> None:
    same = torch.ones(1)
    everyone = [signed([same, torch.ones(n)]) for n in (2, 2, 3)]
    assert table(everyone, ["a.py:1", "a.py:1", "b.py:22"]) == (
        "\n  rank 0 at a.py:1: data[1] float32[2]"
        "\n  rank 1 at a.py:1: data[1] float32[2]"
        "\n  rank 2 at b.py:22: data[1] float32[3]"
        "\nthe lines differ: look for a call inside an `if`, or after a `break`"
    )


def test_alone_everything_agrees() -> None:
    agreed = agree("reduce (sum)", Flat([torch.ones(1)], "reduce (sum)"), Single(), b"enclosed")
    assert agreed == Agreed([b"enclosed"], None, [])
    assert agree_alike("reduce", Flat([torch.ones(1)], "reduce"), Single(), b"a part", advice="") == [b"a part"]


def agreed_on(transport: Transport, data: list[Any]) -> Agreed:
    mine = data[transport.rank]
    return agree("gather", Flat(mine, "gather", objects=True), transport, bytes([transport.rank] * transport.rank))


X = torch.ones(2, 2)


@pytest.mark.parametrize(
    "other",
    [[X, X.to(H)], [X, X[:1]], [X, X[None]], [X, X.to_sparse()], [X, X.to("meta")], [X], [X, X, X], [X, 1],
     [X, [X]], [[X, X]]],
)  # fmt: skip
def test_every_difference_is_seen_and_what_is_enclosed_comes_all_the_same(
    loopback: Callable[..., list[Agreed]], other: Any
) -> None:
    """Promise T25: shapes, dtypes, layouts, devices and structures."""
    data = [[X, X], [X, X], other]
    for found in loopback(3, agreed_on, data):
        assert found.sent == [b"", b"\1", b"\2\2"]
        assert found.signatures == [signature(Flat(one, "gather", objects=True)) for one in data]
        assert len(found.sites) == 3


def test_ranks_that_are_alike_need_one_message(loopback: Callable[..., list[Agreed]]) -> None:
    """Promise T25: the digest has a fixed size, however much data there is."""
    data = [[torch.ones(3, rank + 1)[:, :1], f"object {rank}"] for rank in range(2)]
    assert loopback(2, agreed_on, data) == [Agreed([b"", b"\1"], None, [])] * 2
    assert DIGEST <= 64


def test_a_leaf_on_another_device_is_another_leaf() -> None:
    """Tensors on different devices travel by different backends: ranks would wait for each other for ever."""
    (here,), (there,) = signed(torch.ones(2)), signed(torch.ones(2, device="meta"))
    assert here != there
    assert str(there) == "data float32[2] on meta"
