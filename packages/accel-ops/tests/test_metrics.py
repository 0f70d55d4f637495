import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_comm import Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_ops import gather_for_metrics
from accel_state import BatchPadding
from accel_testing import MakePool, assert_same_numbers
from suite.toy_passes import ToyPass

# 10 samples in batches of 2 on 2 ranks: the last round is 8 9 and, to fill it, 0 1
TEN = [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
LAST_OF_TEN = BatchPadding((2, 0), (2, 2))


def tail(is_last: bool) -> ToyPass:
    return ToyPass("loader", last=is_last, tail=LAST_OF_TEN if is_last else None)


def evaluate() -> tuple[torch.Tensor, torch.Tensor]:
    transport = TorchDist()
    predictions, references = [], []
    for step, batch in enumerate(TEN[transport.rank]):
        x = torch.tensor(batch)
        both = gather_for_metrics((x * 10, x), transport, tail(step == 2))
        assert type(both) is tuple
        predictions.append(both[0])
        references.append(both[1])
    return torch.cat(predictions), torch.cat(references)


def test_an_evaluation_sees_every_sample_once_and_in_order(world: MakePool) -> None:
    """Feature rows S79 and S81."""
    for found in world(2).run(evaluate):
        assert_same_numbers(found, (torch.arange(10) * 10, torch.arange(10)), atol=0)


def last_round_in_all_forms() -> list[Any]:
    transport = TorchDist()
    batch = torch.tensor(TEN[transport.rank][2])
    words = [f"id{number}" for number in batch.tolist()]
    epoch = tail(True)
    return [
        gather_for_metrics({"x": batch, "s": batch.sum()}, transport, epoch),
        gather_for_metrics(words, transport, epoch),
        gather_for_metrics([batch[0], batch[1]], transport, epoch, use_gather_object=True),
        gather_for_metrics({"rank": transport.rank, "x": batch, "words": words}, transport, epoch),
        gather_for_metrics(batch, transport, None),
        gather_for_metrics(batch, transport, tail(False)),
    ]


def test_tensors_objects_and_single_values_are_cut_each_in_its_way(world: MakePool) -> None:
    """Feature row S79, reference 2.4: a single value counts once for each rank that had a real sample."""
    for found in world(2).run(last_round_in_all_forms):
        assert_same_numbers(found[0], {"x": torch.tensor([8, 9]), "s": torch.tensor([17])}, atol=0)
        assert found[1] == ["id8", "id9"]
        assert_same_numbers(found[2], [torch.tensor(8), torch.tensor(9)], atol=0)
        assert_same_numbers(found[3], {"rank": [0], "x": torch.tensor([8, 9]), "words": ["id8", "id9"]}, atol=0)
        assert_same_numbers(found[4], torch.tensor([8, 9, 0, 1]), atol=0)
        assert_same_numbers(found[5], torch.tensor([8, 9, 0, 1]), atol=0)


def uneven_tail() -> list[Any]:
    """11 samples on 3 ranks in batches of 2: the last round is 6 7, 8 9, 10 and a repetition."""
    transport = TorchDist()
    batch = torch.tensor([[6, 7], [8, 9], [10, 0]])[transport.rank]
    epoch = ToyPass("loader", last=True, tail=BatchPadding((2, 2, 1), (2, 2, 2)))
    return [
        gather_for_metrics(batch, transport, epoch),
        gather_for_metrics(batch.float().mean(), transport, epoch),
        gather_for_metrics(tuple(batch.tolist()), transport, epoch),
    ]


def test_a_tail_that_reaches_the_last_rank_is_cut_there(world: MakePool) -> None:
    """Feature row S79."""
    for found in world(3).run(uneven_tail):
        assert_same_numbers(found[0], torch.arange(6, 11), atol=0)
        assert_same_numbers(found[1], torch.tensor([6.5, 8.5, 5.0]), atol=0)
        assert found[2] == [6, 7, 8, 9, 10]


def of_another_length() -> tuple[list[int], list[str], str]:
    transport = TorchDist()
    batch = torch.tensor(TEN[transport.rank][2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gather_for_metrics({"twice": torch.cat([batch, batch]), "x": batch}, transport, tail(True))
        objects = gather_for_metrics(["one"], transport, tail(True))
    assert found["x"].tolist() == [8, 9]
    assert [one.category for one in caught] == [UserWarning] * 2
    return found["twice"].tolist(), objects, str(caught[0].message)


def test_a_leaf_of_other_length_is_returned_whole_with_a_warning(world: MakePool) -> None:
    """Feature row S79."""
    text = (
        "gather_for_metrics: a leaf has [4, 4] entries on the ranks where the batch has [2, 2] samples, so those that"
        " are repeated cannot be told apart and all are returned; give one entry a sample, or use gather"
    )
    assert world(2).run(of_another_length) == [([8, 9, 8, 9, 0, 1, 0, 1], ["one", "one"], text)] * 2


def of_another_length_on_one_rank(transport: Transport) -> tuple[list[int], list[int]]:
    numbers = [[8, 9, 9], [0, 1]][transport.rank]
    found = gather_for_metrics(torch.tensor(numbers), transport, tail(True))
    return found.tolist(), gather_for_metrics(numbers, transport, tail(True))


def test_ranks_decide_alike_whoever_has_other_lengths(loopback: Callable[..., list[Any]]) -> None:
    """Feature row S79, promise T25: the result is the same on every rank, also where one alone has another length."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert loopback(2, of_another_length_on_one_rank) == [([8, 9, 9, 0, 1],) * 2] * 2
    assert len(caught) == 4
    assert all("has [3, 2] entries on the ranks where the batch has [2, 2]" in str(one.message) for one in caught)


# 10 samples in batches of 4: the last one has two, on one process as on two that take one each
SHORT = {1: BatchPadding((2,), (2,)), 2: BatchPadding((1, 1), (1, 1))}


def repeated(transport: Transport) -> list[Any]:
    epoch = ToyPass("loader", rows=4, last=True, tail=SHORT[transport.size])
    batch = torch.tensor([8, 9]) if transport.size == 1 else torch.tensor([8 + transport.rank])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            gather_for_metrics(torch.tensor(2.5).repeat(4), transport, epoch),
            gather_for_metrics({"loss": torch.tensor([[2.5]]).repeat(4, 1), "x": batch}, transport, epoch),
            gather_for_metrics(["a"] * 4, transport, epoch),
            gather_for_metrics([batch[0]] * 4, transport, epoch, use_gather_object=True),
        ]


def test_a_value_that_was_repeated_for_a_full_batch_is_cut_as_the_batch_is(loopback: Callable[..., list[Any]]) -> None:
    """Feature row S79: `loss.repeat(batch_size)`, at any number of processes."""
    for loss, tree, objects, first in [repeated(Single()), *loopback(2, repeated)]:
        assert loss.tolist() == [2.5, 2.5]
        assert_same_numbers(tree, {"loss": torch.full((2, 1), 2.5), "x": torch.tensor([8, 9])}, atol=0)
        assert objects == ["a", "a"]
        assert len(first) == 2


@pytest.mark.parametrize("tail", [None, BatchPadding((4,), (4,)), BatchPadding((2,), (2,))])
@pytest.mark.parametrize("data", [torch.tensor(1.5), torch.ones(2), torch.ones(8), ["a"], "text"])
def test_alone_only_what_has_the_length_of_a_full_batch_is_cut(data: Any, tail: BatchPadding | None) -> None:
    """Feature row S79."""
    found = gather_for_metrics(data, Single(), ToyPass("loader", rows=4, last=True, tail=tail))
    assert_same_numbers(found, data, atol=0) if isinstance(data, torch.Tensor) else None
    assert isinstance(data, torch.Tensor) or found is data


@pytest.mark.parametrize("data", [torch.tensor([1, 2]), ["a", "b"], {"n": 3}])
def test_alone_everything_is_returned_as_it_is(data: Any) -> None:
    """Feature row S79."""
    epoch = ToyPass("loader", last=True, tail=BatchPadding((1, 0), (2, 2)))
    assert gather_for_metrics(data, Single(), epoch) is data
