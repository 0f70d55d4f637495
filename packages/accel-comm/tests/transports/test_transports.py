import pickle
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_comm import Reduction, Transport
from accel_comm.flight_recorder import FlightRecorder
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_testing import MakePool, assert_same_numbers

ALL: list[Reduction] = ["sum", "mean", "max", "min"]
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]


def gathered() -> list[torch.Tensor]:
    transport = TorchDist()
    base = torch.tensor([0, 1]) + 2 * transport.rank
    crossed = torch.arange(6).view(2, 3).t() + 10 * transport.rank
    return [transport.all_gather(x) for x in (*[base.to(dtype) for dtype in DTYPES], base[0], base[:0], crossed)]


def test_gathered_tensors_are_those_of_all_ranks_in_order(world: MakePool) -> None:
    """Feature row S78: every dtype, without dims, without records and not contiguous."""
    whole, crossed = torch.tensor([0, 1, 2, 3]), torch.arange(6).view(2, 3).t()
    expected = [whole.to(dtype) for dtype in DTYPES]
    expected += [torch.tensor([0, 2]), torch.zeros(0, dtype=torch.int64), torch.cat([crossed, crossed + 10])]
    for found in world(2).run(gathered):
        assert_same_numbers(found, expected, atol=0)


def reduced() -> dict[Reduction, list[torch.Tensor]]:
    transport = TorchDist()
    x = torch.tensor([[1.0, -1.0], [2.0, 5.0]]).t() * (transport.rank + 1)
    before = x.clone()
    found = {how: [transport.all_reduce(x, how), transport.all_reduce(x.long(), how)] for how in ALL}
    assert torch.equal(x, before)
    assert not any(torch.Tensor.is_set_to(x, one) for pair in found.values() for one in pair)
    return found


def test_reductions_agree_with_one_process(world: MakePool) -> None:
    x = torch.tensor([[1.0, -1.0], [2.0, 5.0]]).t()
    every = torch.stack([x, 2 * x, 3 * x])
    expected = {
        "sum": [every.sum(0), every.long().sum(0)],
        "mean": [every.mean(0), every.mean(0)],
        "max": [every.amax(0), every.long().amax(0)],
        "min": [every.amin(0), every.long().amin(0)],
    }
    for found in world(3).run(reduced):
        assert_same_numbers(found, expected, atol=1e-6)


def sent() -> tuple[torch.Tensor, dict[str, int], list[str]]:
    transport = TorchDist()
    x = transport.broadcast(torch.full((2, 2), float(transport.rank)), 1)
    return (
        x,
        transport.broadcast_object({"from": transport.rank}, 1),
        transport.all_gather_objects(f"r{transport.rank}"),
    )


def test_one_rank_is_heard_by_all(world: MakePool) -> None:
    for found in world(3).run(sent):
        assert_same_numbers(found, (torch.ones(2, 2), {"from": 1}, ["r0", "r1", "r2"]), atol=0)


def cut_off() -> bool:
    x = torch.ones(2, requires_grad=True)
    transport = TorchDist()
    return any(one.requires_grad for one in (transport.all_gather(x), transport.all_reduce(x, "sum")))


def test_no_gradient_flows_through_an_exchange(world: MakePool) -> None:
    assert world(2).run(cut_off) == [False, False]


def freed_elsewhere() -> int:
    """How many of 300 exchanged tensors a thread of gloo frees; loaders fork their workers beside it."""
    transport, elsewhere = TorchDist(), list[str]()

    def note() -> None:
        if threading.current_thread() is not threading.main_thread():
            elsewhere.append("here")

    for number in range(300):
        if number % 10 == 0:
            transport.barrier()  # nobody runs ahead of a thread that a busy machine keeps waiting
        received = transport.broadcast(torch.zeros(8), 0)
        weakref.finalize(received, note)
        del received
    transport.barrier()
    return len(elsewhere)


def test_what_was_exchanged_is_freed_by_the_main_thread(world: MakePool) -> None:
    """Were gloo's threads free to do it, they would free dozens; one that does not get to run may be late for a few."""
    assert max(world(2).run(freed_elsewhere)) <= 5


def travelled() -> tuple[int, int]:
    copy = pickle.loads(pickle.dumps(TorchDist()))
    return copy.rank, copy.size


def test_a_copy_belongs_to_the_process_that_unpickles_it(world: MakePool) -> None:
    assert world(2).run(travelled) == [(0, 2), (1, 2)]


@pytest.fixture
def single() -> Transport:
    return Single()


def test_alone_everything_comes_back_as_it_is(single: Transport) -> None:
    x, value = torch.tensor([1.0, 2.0]), object()
    assert (single.rank, single.size) == (0, 1)
    assert single.all_gather(x) is x
    assert single.broadcast(x, 0) is x
    assert single.all_gather_objects(value) == [value]
    assert single.broadcast_object(value, 0) is value
    single.barrier()


@pytest.mark.parametrize("how", ALL)
def test_alone_a_reduction_gives_equal_numbers_in_a_new_tensor(single: Transport, how: Reduction) -> None:
    x = torch.tensor([1.0, 2.0])
    y = single.all_reduce(x, how)
    assert_same_numbers(y, x, atol=0)
    assert y.data_ptr() != x.data_ptr()


def test_alone_a_mean_of_whole_numbers_is_a_float_as_it_is_for_many(single: Transport) -> None:
    assert_same_numbers(single.all_reduce(torch.tensor([1, 2]), "mean"), torch.tensor([1.0, 2.0]), atol=0)
    assert single.all_reduce(torch.tensor([1, 2]), "sum").dtype == torch.int64


def exchanged_objects() -> list[Any]:
    transport = TorchDist()
    big = torch.arange(3000) if transport.rank == 0 else torch.zeros(0)
    tree = {"big": big, "bf16": torch.ones(2, 3, dtype=torch.bfloat16).t(), "scalar": torch.tensor(3), "rank": 7}
    grad = torch.ones(2, requires_grad=True)
    sent: list[Any] = [tree, grad, torch.zeros(0, 2), torch.eye(2).to_sparse()]
    received = transport.broadcast_object(sent, 0)
    changed = received[0]["scalar"]
    changed += 1  # a tensor that was received can be written to
    everyone = transport.all_gather_objects("x" * (1 + 9000 * transport.rank))
    return [received[0], received[1].requires_grad, received[2].shape, received[3].to_dense(), list(map(len, everyone))]


def test_objects_of_any_size_arrive_with_their_tensors(world: MakePool) -> None:
    for tree, grad, empty, dense, lengths in world(2).run(exchanged_objects):
        assert torch.equal(tree["big"], torch.arange(3000))
        assert torch.equal(tree["bf16"], torch.ones(3, 2, dtype=torch.bfloat16))
        assert (tree["scalar"].item(), tree["rank"], grad, tuple(empty)) == (4, 7, True, (0, 2))
        assert torch.equal(dense, torch.eye(2))
        assert lengths == [1, 9001]


def test_an_exchange_of_a_device_is_over_when_the_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's wait returns when the exchange is queued."""
    over, recorder = [False], FlightRecorder()
    event = SimpleNamespace(query=lambda: over[0])
    stream = SimpleNamespace(record_event=lambda: event, device=torch.device("cuda:0"))
    monkeypatch.setattr("torch.accelerator.current_stream", lambda device: stream)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    transport, received = TorchDist(recorder), SimpleNamespace(device=torch.device("cuda:0"))
    recorder.begin("all_gather")
    # a stand-in
    transport._work.finish(lambda *_, async_op: SimpleNamespace(wait=lambda: None), received)  # type: ignore[arg-type]
    record = recorder.newest()
    assert record is not None
    assert record.ended is None
    over[0] = True
    record = recorder.newest()
    assert record is not None
    assert record.ended is not None
