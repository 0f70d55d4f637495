"""Of what rank 0 reads for all, every rank receives its own part alone, exactly as it was."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel_comm import PeerFailed
from accel_comm.transports import serialization
from accel_comm.transports.point_to_point import TorchPointToPoint
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_testing import MakePool
from suite.toy_models import RangeStream
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

SIZES = [3, 3, 3, 3, 5, 5, 4, 4, 40_000, 40_000]


class Changing(IterableDataset[Any]):
    """Batches of which dtype, shape and structure change in mid-stream, some of them large."""

    def __iter__(self) -> Iterator[Any]:
        for number, size in enumerate(SIZES):
            whole = torch.arange(number, number + size)
            x = whole.double() if number < 2 else whole.bfloat16() if number < 4 else whole
            yield {"x": x.unsqueeze(0), "pair": (x == number, [x[:1]])} if number < 6 else (x, f"text {number}", None)


def changing() -> list[Any]:
    loader = DataLoader(Changing(), batch_size=1, collate_fn=lambda samples: samples[0])
    return list(prepare_data_loader(loader, transport=TorchDist(), dispatch_batches=True))


def described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.double().sum().item()
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    return type(value)(map(described, value)) if isinstance(value, list | tuple) else value


def test_batches_that_change_in_mid_stream_arrive_as_they_were(world: MakePool) -> None:
    zero, one = world(2).run(changing)
    expected = [described(batch) for batch in Changing()]
    assert [described(batch) for batch in zero] == expected[::2]
    assert [described(batch) for batch in one] == expected[1::2]


def messages_of_a_rank() -> tuple[list[int], int]:
    """The bytes of each message that this rank receives in a pass of full rounds, and how often anything is pickled."""
    transport, lengths = TorchDist(), list[int]()
    loader = DataLoader(RangeStream(8 * 40 * transport.size), batch_size=8)
    prepared = prepare_data_loader(loader, transport=transport, dispatch_batches=True)
    plain = TorchPointToPoint.scatter

    def noted(self: TorchPointToPoint, what: str, payloads: Any, source: int) -> bytes:
        message = plain(self, what, payloads, source)
        lengths.append(len(message))
        return message

    batches = iter(prepared)
    with (
        patch.object(TorchPointToPoint, "scatter", noted),
        patch.object(serialization, "pack", wraps=serialization.pack) as pack,
    ):
        for _ in range(30):
            next(batches)
        packed = pack.call_count
        for _ in batches:
            pass
    return lengths[1:-1], packed


def test_messages_of_a_rank_are_its_numbers_however_many_ranks_there_are(world: MakePool) -> None:
    """Rank 0 pickles that the pass begins, and what the first part of each rank looks like, but no full round."""
    for size in (2, 4):
        zero, *others = world(size).run(messages_of_a_rank)
        assert zero[1] == 1 + size - 1
        for lengths, packed in others:
            assert lengths == [8 * 8 + 5] * 38
            assert packed == 0


class Unsendable(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ({"x": torch.zeros(1), "f": None} for _ in range(2))
        yield from ({"x": torch.zeros(1), "f": lambda: 1} for _ in range(2))


def unsendable() -> tuple[int, str]:
    loader = DataLoader(Unsendable(), batch_size=1, collate_fn=lambda samples: samples[0])
    prepared = prepare_data_loader(loader, transport=TorchDist(), dispatch_batches=True)
    served: list[Any] = []
    with pytest.raises(Exception, match="lambda") as error:
        served.extend(prepared)
    return len(served), error.type.__name__


def test_a_part_that_cannot_be_pickled_ends_the_pass_on_every_rank(world: MakePool) -> None:
    zero, one = world(2).run(unsendable)
    assert zero[0] == one[0] == 1
    assert one[1] == PeerFailed.__name__


class Named(IterableDataset[Any]):
    """Samples with a text, as pipelines of webdataset give them."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(20):
            yield {"id": number, "__key__": f"n{number}"}


def divided(collate: Any) -> list[Any]:
    loader: Any = prepare_data_loader(
        DataLoader(Named(), 8, collate_fn=collate), transport=TorchDist(), split_batches=True, dispatch_batches=True
    )
    return [(batch["id"].tolist(), batch["__key__"]) for batch in loader]


def test_texts_of_a_batch_are_divided_with_its_numbers(world: MakePool) -> None:
    """Each rank trains on its part; whole batches for all would double the gradients of sums."""
    for rank, batches in enumerate(world(2).run(divided, None)):
        assert [ids for ids, _ in batches[:2]] == [list(range(first, first + 4)) for first in (4 * rank, 8 + 4 * rank)]
        assert all(list(keys) == [f"n{number}" for number in ids] for ids, keys in batches)
        assert batches[2][0] == [16 + 2 * rank, 17 + 2 * rank]


def with_a_word_for_all(samples: list[Any]) -> dict[str, Any]:
    return {"id": torch.tensor([sample["id"] for sample in samples]), "__key__": "one word for all samples"}


def refused() -> str:
    with pytest.raises((ValueError, PeerFailed)) as error:
        divided(with_a_word_for_all)
    return str(error.value)


def test_a_batch_that_cannot_be_divided_is_refused_on_all_ranks(world: MakePool) -> None:
    zero, one = world(2).run(refused)
    assert zero.startswith("split_batches=True divides each batch among 2 processes, and this dict has parts without")
    assert one.endswith(zero)
