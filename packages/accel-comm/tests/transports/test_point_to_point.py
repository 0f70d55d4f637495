"""What one rank has for each of the others, in memory that they share and by gloo."""

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from accel_comm import CollectiveMismatch
from accel_comm.transports.agreement import BLOCK
from accel_comm.transports.header import BARE
from accel_comm.transports.shared_memory import LONGEST, SHORT, SLOTS
from accel_comm.transports.torch_dist import TorchDist
from accel_state import release
from accel_testing import MakePool
from shared_memory_channels import channel_of, channels, digest, joined, message
from suite.recording_device import DeviceTensor, RecordingDevice

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float64, torch.complex64]


def scattered(switch: str, rows: list[list[int]]) -> tuple[int, list[str], list[int]]:
    """The room of a message, the digests of what this rank receives, and how many exchanges each took."""
    os.environ["ACCEL_SHARED_MEMORY"] = switch
    transport = joined()
    assert (channel_of(transport) is not None) == (switch == "1")
    room, size = transport.point_to_point.inline_bytes, transport.size
    received, exchanges = [], []
    for number, row in enumerate(rows):
        source = number % size
        payloads = [message(rank, number, max(0, room + row[rank % len(row)])) for rank in range(size)]
        before = transport.recorder.number
        mine = transport.point_to_point.scatter("parts", payloads if transport.rank == source else [], source)
        received.append(digest(mine))
        exchanges.append(transport.recorder.number - before)
    release()
    return room, received, exchanges


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_receives_its_own_payload(size: int, switch: str, world: MakePool) -> None:
    """Of any length, from any rank, in one exchange if all are small, and as many on every rank."""
    far = -LONGEST
    rows = [[0], [-1, 0], [1], [0, 1], [far], [far, 1], [far + 300, far, 5000], [far, -5]] * 2
    everyone = world(size).run(scattered, switch, rows, timeout_s=60)
    for rank, (room, received, exchanges) in enumerate(everyone):
        lengths = [[max(0, room + row[other % len(row)]) for other in range(size)] for row in rows]
        assert received == [digest(message(rank, number, row[rank])) for number, row in enumerate(lengths)]
        assert exchanges == [1 if max(row) <= room else 2 for row in lengths]
    assert everyone[0][0] == (BLOCK - BARE if switch == "0" else ((LONGEST - SHORT) // (size - 1) & ~7) - 8)


def tensors_for(rank: int) -> list[torch.Tensor]:
    torch.manual_seed(rank)
    return [(torch.rand(1000 * rank + 1) * 100).to(dtype) for dtype in DTYPES[rank:]]


def tensors_scattered() -> bool:
    transport = joined()
    alike = True
    for source in range(transport.size):
        expected = tensors_for(transport.rank)
        if transport.rank == source:
            sent = [tensors_for(rank) for rank in range(transport.size)]
            transport.point_to_point.scatter_tensors("parts", sent, [], source)
            continue
        received = [torch.empty_like(tensor) for tensor in expected]
        transport.point_to_point.scatter_tensors("parts", [], received, source)
        alike &= all(a.equal(b) for a, b in zip(received, expected, strict=True))
    release()
    return alike


def test_tensors_of_any_dtype_and_number_are_filled(world: MakePool) -> None:
    assert world(3).run(tensors_scattered) == [True] * 3


def by_the_host() -> tuple[list[str], list[float]]:
    def copied(target: DeviceTensor, host: torch.Tensor) -> None:
        target.numbers.copy_(host)

    # torch itself would ask the driver which GPU it is
    with RecordingDevice().installed() as gpu, patch.object(DeviceTensor, "copy_", copied, create=True):
        transport = TorchDist()
        assert not transport.point_to_point.supports_device("cuda")
        tensor = gpu.put(torch.arange(5.0) * transport.rank)
        gpu.calls.clear()
        sent = [[], [gpu.put(torch.tensor([1.5, 2, 3, 4, 5]))]]
        if transport.rank == 0:
            transport.point_to_point.scatter_tensors("parts", sent, [], 0)
        else:
            transport.point_to_point.scatter_tensors("parts", [], [tensor], 0)
    return gpu.calls, tensor.numbers.tolist()  # type: ignore[attr-defined] # of the stand-in


def test_a_group_that_cannot_read_a_device_is_given_a_copy_on_the_host(world: MakePool) -> None:
    (sender, _), (_, received) = world(2).run(by_the_host)
    assert received == [1.5, 2, 3, 4, 5]
    assert sender == ["copy out on current stream: 20 bytes, pageable, the host waits"]


STREAM = "torch.accelerator.current_stream"


def connections() -> list[int]:
    """All-reduces after each of two messages, of which the last rank gets none."""
    transport, counts = joined(), list[int]()
    # as of a backend that takes tensors of these kinds from their memory, of which the job computes on one
    vars(transport.point_to_point)["_direct"] = {"cpu", "xpu"}
    reduced_by, streams = patch("torch.distributed.all_reduce", wraps=torch.distributed.all_reduce), patch(STREAM)
    with reduced_by as reduced, streams:
        for _ in range(2):
            sent = [[], [torch.ones(3)], []] if transport.rank == 0 else []
            received = [torch.zeros(3)] if transport.rank == 1 else []
            transport.point_to_point.scatter_tensors("parts", sent, received, 0)
            counts.append(reduced.call_count)
    release()
    return counts


def test_a_rank_that_receives_nothing_takes_part_in_the_first_exchange(world: MakePool) -> None:
    """NCCL makes its connections there, and would wait for that rank."""
    assert world(3).run(connections) == [[1, 1]] * 3


def disagree() -> list[str]:
    transport, found = joined(), list[str]()
    for number in range(3):
        try:
            if transport.rank == 0:
                transport.point_to_point.scatter("parts", [b"for", b"each", b"rank"], 0)
            elif number == 1:
                transport.send("broadcast_object", b"", 0)
            else:
                found.append(str(transport.point_to_point.scatter("other parts" if number == 2 else "parts", [], 0)))
        except CollectiveMismatch as error:
            found.append(str(error))
    release()
    return found


def test_a_rank_that_calls_something_else_hears_of_it(world: MakePool) -> None:
    here = re.escape(Path(__file__).name)
    _, *others = world(3).run(disagree)
    for rank, (fine, sent, scattered_otherwise) in enumerate(others, 1):
        assert fine == str([b"", b"each", b"rank"][rank])
        for name, text in ("broadcast_object", sent), ("other parts", scattered_otherwise):
            assert re.search(rf"\n  rank 0: parts at \S*{here}:\d+\n  rank {rank}: {name} at \S*{here}:\d+\n", text)


def test_sections_are_the_newest_at_any_place() -> None:
    """Beside messages that have none, and as long as they may be."""
    source, *others = every = channels(3)
    for number in range(3 * SLOTS):
        if number % 3 == 2:
            for channel in every:
                channel.post(message(0, number, LONGEST))
                channel.done()
            continue
        room = source.section_room
        sections = [message(rank, number, room - number) for rank in range(3)]
        source.post(b"short", sections)
        source.done()
        for rank, channel in enumerate(others, 1):
            channel.post(b"")
            assert channel.read(0) == b"short"
            assert channel.read_section(0) == sections[rank]
            channel.done()
