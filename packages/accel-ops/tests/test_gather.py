from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import gather, gather_object
from accel_testing import MakePool, assert_same_numbers
from named_pairs import Output

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
LENGTHS = [3, 0, 2]


def gathered(per_rank: Sequence[Any]) -> Any:
    transport = TorchDist()
    return gather(per_rank[transport.rank], transport)


def test_pieces_are_joined_in_rank_order_on_every_rank(world: MakePool) -> None:
    """Feature row S78: [1, 2] and [3, 4]."""
    found = world(2).run(gathered, [torch.tensor([1, 2]), torch.tensor([3, 4])])
    assert [one.cpu().numpy().tolist() for one in found] == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_gathering_the_batches_and_cutting_the_end_gives_the_data_in_order(world: MakePool, size: int) -> None:
    """Feature rows S58 and S81: 10 samples in batches of 2, the last round filled up from the start."""
    data = torch.arange(10) * 7
    rounds = -(-10 // (2 * size))
    filled = torch.cat([data, data])[: rounds * 2 * size].view(rounds, size, 2)
    mine = [[filled[step, rank] for step in range(rounds)] for rank in range(size)]
    for steps in world(size).run(gathered, mine):
        assert_same_numbers(torch.cat(steps)[:10], data, atol=0)


def test_lengths_may_differ_and_be_nothing(world: MakePool) -> None:
    """Feature row S78: along dim 0, in every dtype, with further dims and without memory in order."""
    whole = torch.arange(10).view(5, 2)
    columns = torch.arange(10).view(2, 5).t()
    parts = [[*[part.to(dtype) for dtype in DTYPES], column] for part, column in
             zip(torch.split(whole, LENGTHS), torch.split(columns, LENGTHS), strict=True)]  # fmt: skip
    expected = [*[whole.to(dtype) for dtype in DTYPES], columns]
    for found in world(3).run(gathered, parts):
        assert_same_numbers(found, expected, atol=0)


def test_equal_lengths_of_every_kind(world: MakePool) -> None:
    """Feature row S78: contiguous or not, without dims, empty."""
    base = [torch.arange(6).view(2, 3) + 6 * rank for rank in range(2)]
    parts = [[x, x.t(), x[:, 1], x[0, 0], x[:0], *[x.to(dtype) for dtype in DTYPES]] for x in base]
    both = torch.cat(base)
    expected = [
        both,
        torch.cat([x.t() for x in base]),
        both[:, 1],
        torch.tensor([0, 6]),
        both[:0],
        *[both.to(dtype) for dtype in DTYPES],
    ]
    for found in world(2).run(gathered, parts):
        assert_same_numbers(found, expected, atol=0)


def new_list() -> Any:
    return []


def structures(rank: int) -> Any:
    x = torch.tensor([rank])
    return Output(
        logits=[x, (x, {"k": x})],
        loss=UserDict(a=OrderedDict(b=x), c=defaultdict(new_list, d=torch.arange(rank + 1))),
    )


def gathered_structures() -> Any:
    transport = TorchDist()
    return gather(structures(transport.rank), transport)


def test_the_structure_comes_back_with_its_types(world: MakePool) -> None:
    """Feature row S55: named tuples, UserDict, defaultdict, nested; one leaf is ragged."""
    both = torch.tensor([0, 1])
    for found in world(2).run(gathered_structures):
        assert type(found) is Output
        assert [type(one) for one in (found.logits, found.logits[1], found.loss)] == [list, tuple, UserDict]
        assert type(found.loss["a"]) is OrderedDict
        assert found.loss["c"].default_factory is new_list
        assert_same_numbers(found.logits, [both, (both, {"k": both})], atol=0)
        assert_same_numbers(found.loss["a"]["b"], both, atol=0)
        assert_same_numbers(found.loss["c"]["d"], torch.tensor([0, 0, 1]), atol=0)


def with_objects() -> Any:
    transport = TorchDist()
    r = transport.rank
    return gather(
        {
            "x": torch.full((r + 1,), r),
            "ids": [f"{r}a", f"{r}b"],
            "nested": [[r], ["of", r]],
            "few": [] if r else ["only rank 0"],
            "name": f"rank {r}",
            "cache": None,
            "some": r or None,
            "pair": Output(logits=torch.tensor(r), loss=[b"raw", None]),
        },
        transport,
    )


def test_objects_travel_beside_tensors(world: MakePool) -> None:
    """Promise T25: lists are joined, of other objects each rank's comes in a list, and nothing stays nothing."""
    for found in world(2).run(with_objects):
        pair = found.pop("pair")
        assert_same_numbers([found.pop("x"), pair.logits], [torch.tensor([0, 1, 1]), torch.tensor([0, 1])], atol=0)
        assert type(pair) is Output
        assert pair.loss == [b"raw", None, b"raw", None]
        assert found == {
            "ids": ["0a", "0b", "1a", "1b"],
            "nested": [[0], ["of", 0], [1], ["of", 1]],
            "few": ["only rank 0"],
            "name": ["rank 0", "rank 1"],
            "cache": None,
            "some": [None, 1],
        }


def only_objects() -> list[Any]:
    transport = TorchDist()
    r, long = transport.rank, "long " * 20_000
    return [gather(one, transport) for one in ([r], r, None, {"k": [r], "n": {}}, "text", [], {}, [[long], r])]


def test_objects_travel_alone_too_and_may_be_long(world: MakePool) -> None:
    """Promise T25."""
    long = ["long " * 20_000]
    expected = [[0, 1], [0, 1], None, {"k": [0, 1], "n": {}}, ["text", "text"], [], {}, [long, 0, long, 1]]
    assert world(2).run(only_objects) == [expected] * 2


def with_gradient() -> list[bool]:
    transport = TorchDist()
    x = torch.ones(transport.rank + 1, requires_grad=True)
    return [gather(x, transport).requires_grad, gather(x[:1], transport).requires_grad]


def test_no_gradient_flows_back(world: MakePool) -> None:
    assert world(2).run(with_gradient) == [[False, False]] * 2


def objects() -> list[Any]:
    transport = TorchDist()
    r = transport.rank
    return [
        gather_object([f"{r}a", f"{r}b"], transport),
        gather_object((r,), transport),
        gather_object({"rank": r}, transport),
        gather_object([], transport),
    ]


def test_lists_of_objects_are_joined_in_rank_order(world: MakePool) -> None:
    """Feature row S78."""
    expected = [["0a", "0b", "1a", "1b"], [0, 1], [{"rank": 0}, {"rank": 1}], []]
    assert world(2).run(objects) == [expected] * 2


def test_alone_the_very_same_tensors_come_back() -> None:
    """Feature row S78."""
    data = {"x": torch.tensor([1, 2]), "s": torch.tensor(3.0)}
    found = gather(data, Single())
    assert found["x"] is data["x"]
    assert found["s"] is data["s"]
    objects = ["a"]
    assert gather_object(objects, Single()) is objects
