"""Each rank receives its own part: plain tensors as their numbers, what they look like only when it changes."""

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accel_comm import Transport
from accel_comm.transports import serialization
from accel_ops import around_tensors
from accel_ops.scatter import Scatter
from named_pairs import Pair
from suite.recording_device import DeviceTensor, RecordingDevice
from suite.soak import Cases
from torch.nn.utils.rnn import PackedSequence, pack_sequence

Loopback = Callable[..., list[Any]]
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


class Opaque:
    """A batch of a class of its own."""

    def __init__(self, x: torch.Tensor, text: str) -> None:
        self.x, self.text = x, text


def passed(transport: Any, rounds: list[list[Any]], source: int = 0) -> tuple[list[Any], list[int], list[str]]:
    """The parts that a rank receives, the bytes of each message to it, and its calls."""
    scatter, received, lengths = Scatter("parts", transport, source), list[Any](), list[int]()
    plain = transport.point_to_point.scatter

    def noted(what: str, payloads: Any, source: int) -> bytes:
        message: bytes = plain(what, payloads, source)
        lengths.append(len(message))
        return message

    transport.point_to_point.scatter = noted
    for parts in rounds:
        if transport.rank == source:
            scatter.send(parts)
            received.append(None)
        else:
            received.append(scatter.receive()[0])
    return received, lengths, transport.calls


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
    if isinstance(a, dict | UserDict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def tree(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(9) if depth else 0
    if kind in (0, 1, 2):
        shape = [rng.randrange(4) for _ in range(rng.randrange(3))] if rng.random() < 0.9 else [40_000]
        tensor = torch.randint(0, 2, shape).to(rng.choice(DTYPES))
        return tensor.T if tensor.ndim == 2 and rng.random() < 0.3 else tensor
    inner = [tree(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    if kind == 3:
        return inner
    if kind == 4:
        return tuple(inner)
    if kind == 5:
        return Pair(inner[0], inner[-1])
    if kind == 6:
        return UserDict(dict(enumerate(inner)))
    if kind == 7:
        return rng.choice(["text", None, 7, [1, 2], torch.zeros(2).to_sparse()])
    return {f"k{number}": item for number, item in enumerate(inner)}


def without_sparse(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to_dense() if value.layout != torch.strided else value
    if isinstance(value, dict | UserDict):
        return type(value)({key: without_sparse(item) for key, item in value.items()})
    if isinstance(value, Pair):
        return Pair(*map(without_sparse, value))
    return type(value)(map(without_sparse, value)) if isinstance(value, list | tuple) else value


def test_any_data_arrives_as_it_was_at_its_rank_alone(loopback: Loopback, cases: Cases) -> None:
    for seed in cases(25, 500):
        rng = random.Random(seed)
        size = rng.choice([2, 3, 5])
        source = rng.randrange(size)
        rounds: list[list[Any]] = []
        for _ in range(4):
            again = rounds and rng.random() < 0.4
            rounds.append(rounds[-1] if again else [tree(rng) for _ in range(size)])
        for rank, (received, *_) in enumerate(loopback(size, passed, rounds, source)):
            for part, parts in zip(received, rounds, strict=True):
                expected = None if rank == source else parts[rank]
                assert same(without_sparse(part), without_sparse(expected)), (rank, expected, part)


def batch(start: int, rows: int = 32, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"x": torch.arange(start, start + rows * 8).view(rows, 8).to(dtype), "y": (torch.arange(rows),)}


def test_numbers_travel_alone_until_the_layout_changes(loopback: Loopback) -> None:
    """As little as they are, with the five bytes in front; a change of shape or dtype costs one layout more."""
    rounds: list[list[Any]] = [[batch(7 * number)] * 2 for number in range(3)]
    rounds += [[batch(1, rows=9)] * 2] * 2 + [[batch(1, rows=9, dtype=torch.int16)] * 2] * 2
    _, (received, lengths, calls) = loopback(2, passed, rounds)
    assert all(same(part, parts[1]) for part, parts in zip(received, rounds, strict=True))
    numbers = [32 * 8 * 4 + 32 * 8] * 3 + [9 * 8 * 4 + 9 * 8] * 2 + [9 * 8 * 2 + 9 * 8] * 2
    beside = [length - number for length, number in zip(lengths, numbers, strict=True)]
    assert [extra == 5 for extra in beside] == [False, True, True, False, True, False, True]
    assert calls == ["scatter"] * 7


def test_plain_tensors_are_not_pickled_again(loopback: Loopback) -> None:
    rounds: list[list[Any]] = [[batch(number)] * 3 for number in range(6)]
    packs = [patch.object(module, "pack", side_effect=module.pack) for module in (serialization, around_tensors)]
    with packs[0] as pack, packs[1] as pack_around:
        loopback(3, passed, rounds)
    assert (pack.call_count, pack_around.call_count) == (2, 2)  # the first part of each other rank


@pytest.mark.parametrize("size", [2, 3, 8])
def test_what_a_rank_receives_does_not_grow_with_the_ranks(loopback: Loopback, size: int) -> None:
    rounds: list[list[Any]] = [[batch(rank) for rank in range(size)]] * 3
    for _, lengths, calls in loopback(size, passed, rounds)[1:]:
        assert lengths == loopback(2, passed, [[batch(0)] * 2] * 3)[1][1]
        assert calls == ["scatter"] * 3


def test_large_tensors_follow_the_message(loopback: Loopback) -> None:
    """Large tensors alone, and small ones of a dtype together."""
    large = [torch.rand(400, 100), [torch.rand(3), torch.rand(2, 2), torch.tensor([True])]]
    _, (received, lengths, calls) = loopback(2, passed, [[large, large]] * 2)
    assert all(same(part, large) for part in received)
    assert lengths[1] == 5
    assert calls == ["scatter", "scatter_tensors"] * 2


def test_a_tensor_that_stands_in_two_places_still_does(loopback: Loopback) -> None:
    """And two tensors that look alike are two, before and after it."""
    shared, other = torch.zeros(3), torch.ones(3)
    rounds = [[[], pair] for pair in ([other, shared], [shared, shared], [shared, other], [other, other])]
    received, *_ = loopback(2, passed, rounds)[1]
    assert [first is second for first, second in received] == [False, True, False, True]
    assert [(first[0].item(), second[0].item()) for first, second in received] == [(1, 0), (0, 0), (0, 1), (1, 1)]


def test_tensors_inside_of_other_objects_are_numbers_too(loopback: Loopback) -> None:
    packed = pack_sequence([torch.rand(3), torch.rand(2)])
    rounds = [[None, Opaque(torch.arange(9_000.0), "text")], [None, packed]]
    (opaque, sequence), lengths, _ = loopback(2, passed, rounds)[1]
    assert opaque.x.equal(torch.arange(9_000.0))
    assert opaque.text == "text"
    assert isinstance(sequence, PackedSequence)
    assert sequence.data.equal(packed.data)
    assert lengths[0] < 9_000 * 4 + 600


def with_a_lambda(transport: Transport) -> list[Any]:
    scatter, results = Scatter("parts", transport), list[Any]()
    for number in range(3):
        parts = [[], batch(1, rows=4 + number), batch(2, rows=4 + number)]
        if transport.rank > 0:
            results.append(scatter.receive())
            continue
        if number == 1:
            try:
                scatter.send([[], batch(3, rows=5), lambda: 1])
            except Exception as error:  # noqa: BLE001 - of pickle
                results.append(str(error))
        scatter.send(parts, note={"number": number} if number else None)
    return results


def test_what_cannot_be_pickled_leaves_what_ranks_know_as_it_was(loopback: Loopback) -> None:
    """The layout of rank 1, which came before, counts as not sent."""
    (text,), *others = loopback(3, with_a_lambda)
    assert "lambda" in text
    for rank, results in enumerate(others, 1):
        assert [note for _, note in results] == [None, {"number": 1}, {"number": 2}]
        assert all(same(part, batch(rank, rows=4 + number)) for number, (part, _) in enumerate(results))


@pytest.fixture
def gpu() -> Iterator[RecordingDevice]:
    plain = serialization.is_bare
    with (
        RecordingDevice().installed() as installed,
        patch.object(serialization, "is_bare", lambda value: type(value) is DeviceTensor or plain(value)),
    ):
        yield installed


class Wire:
    """The transport of rank 0 that sends tensors of GPUs to rank 1; it keeps what it is given."""

    rank, size, inline_bytes = 0, 2, 1 << 12

    def __init__(self) -> None:
        self.point_to_point = self
        self.payloads: list[Any] = []
        self.tensors: list[Any] = []

    def supports_device(self, kind: str) -> bool:
        return kind == "cuda"

    def scatter(self, what: str, payloads: Any, source: int) -> bytes:
        self.payloads.append(payloads)
        return b""

    def scatter_tensors(self, what: str, sent: Any, received: Any, source: int) -> None:
        self.tensors.append(sent)


@pytest.mark.parametrize("rows", [2, 50_000])
def test_tensors_of_a_device_are_sent_from_it(gpu: RecordingDevice, rows: int) -> None:
    """The host neither receives them nor waits for the device."""
    wire: Any = Wire()
    scatter = Scatter("parts", wire)
    parts = [{"x": gpu.put(torch.rand(rows, 2)), "y": gpu.put(torch.arange(rows))} for _ in range(2)]
    gpu.calls.clear()
    for _ in range(2):
        scatter.send(parts)
    assert gpu.calls == []
    for own, sent in wire.tensors:
        assert own == []
        assert {type(tensor) for tensor in sent} == {DeviceTensor}
        assert sum(tensor.nbytes for tensor in sent) == rows * 16
    assert len(wire.payloads[1][1]) == 5


def test_parts_for_a_device_are_sent_from_that_of_the_source(gpu: RecordingDevice) -> None:
    """Those that fit into the message are not: the receiver copies them to its device itself."""
    wire: Any = Wire()
    scatter = Scatter("parts", wire, device="cuda:0")
    scatter.send([batch(0, rows=2)] * 2)
    assert gpu.calls == []
    assert wire.tensors == []
    parts = [batch(0, rows=5_000)] * 2
    scatter.send(parts)
    ((own, sent),) = wire.tensors
    assert own == []
    assert {type(tensor) for tensor in sent} == {DeviceTensor}
    assert [call.partition(":")[0] for call in gpu.calls] == ["copy in on current stream"] * 2
