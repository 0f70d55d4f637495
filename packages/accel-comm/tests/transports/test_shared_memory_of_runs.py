"""Exchanges through shared memory are those through gloo."""

import os
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from accel_comm import CollectiveMismatch
from accel_comm.transports import shared_memory
from accel_comm.transports.header import BARE
from accel_comm.transports.shared_memory import LONGEST
from accel_state import release
from accel_testing import MakePool
from shared_memory_channels import channel_of, digest, joined, message, shared_memories


def exchanged(lengths: list[list[int]]) -> dict[str, Any]:
    """With and without a channel: what is received, relative to a header that is full, and after how many messages."""
    found: dict[str, Any] = {}
    for switch in ("1", "0"):
        os.environ["ACCEL_SHARED_MEMORY"] = switch
        transport = joined()
        channel = channel_of(transport)
        assert (channel is not None) == (switch == "1")
        rank, size = transport.rank, transport.size
        rows, messages = [], []
        room = LONGEST - BARE
        for number, row in enumerate([[0], *lengths]):
            mine = message(rank, number, max(0, room + row[rank % len(row)]))
            before = transport.recorder.number
            rows.append([digest(one) for one in transport.exchange("gather", mine)])
            messages.append(transport.recorder.number - before)
            source = number % size
            what = f"from {source}"
            rows.append([digest(transport.send(what, mine if rank == source else b"not sent", source))])
        if channel is not None:
            assert channel.number >= 2 * len(messages)
        found[switch] = room, rows, messages
        del channel
        release()
        del transport
        assert shared_memories() == 0
    return found


BY_ROOM: list[list[int]] = [
    [-1],
    [0],
    [1],
    [-1, 0],
    [0, 1],
    [1, 0],
    [-LONGEST, 1],
    [1, -LONGEST, 0],
    [1, -20, -LONGEST],
    [30],
    [90, 91, 89],
    [LONGEST, 0],
    [-LONGEST],
    [-LONGEST + 300, -LONGEST, 0],
]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_exchanges_are_those_of_the_group(size: int, world: MakePool) -> None:
    """Of any length, with more ranks than cores too."""
    everyone = world(size).run(exchanged, BY_ROOM, timeout_s=60)
    for found in everyone:
        assert found["1"][:2] == found["0"][:2]
        assert found["1"][1][::2] == everyone[0]["1"][1][::2]
    room, rows, messages = everyone[0]["1"]
    assert room == LONGEST - BARE
    for number, row in enumerate(BY_ROOM, 1):
        lengths = [max(0, room + row[rank % len(row)]) for rank in range(size)]
        sent = [digest(message(rank, number, length)) for rank, length in enumerate(lengths)]
        assert rows[2 * number] == sent
        assert rows[2 * number + 1] == [sent[number % size]]
        assert messages[number] == (1 if max(lengths) <= room else 2)


def many(rounds: int) -> tuple[bool, int]:
    """Rounds of all kinds without a pause, in which ranks lag at times of their own: how many were right."""
    transport, right = joined(), 0
    own = random.Random(transport.rank)
    plan = random.Random(1)
    for number in range(rounds):
        source, length = plan.randrange(transport.size), plan.choice([0, 8, 300, 5000, LONGEST - 200])
        if own.random() < 0.05:
            time.sleep(0.003)
        if plan.random() < 0.7:
            found = transport.send("one", message(source, number, length) if transport.rank == source else b"", source)
            right += found == message(source, number, length)
        else:
            every = transport.exchange("all", message(transport.rank, number, length))
            right += every == [message(rank, number, length) for rank in range(transport.size)]
    used = channel_of(transport) is not None
    release()
    return used, right


@pytest.mark.parametrize("size", [2, 4])
def test_rounds_without_a_pause_mix_nothing_up(size: int, world: MakePool) -> None:
    assert world(size).run(many, 300, timeout_s=60) == [(True, 300)] * size


def without_memory_on_one(rank: int) -> tuple[bool, list[list[bytes]], int]:
    if dist.get_rank() == rank:
        vars(shared_memory).update(mmap=SimpleNamespace(mmap=Mock(side_effect=OSError)))
    transport = joined()
    found = [transport.exchange("gather", bytes([transport.rank]) * 9) for _ in range(3)]
    used = channel_of(transport) is not None
    release()
    return used, found, shared_memories()


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_rank_has_no_memory_none_uses_it(rank: int, world: MakePool) -> None:
    expected = [bytes([each]) * 9 for each in range(3)]
    assert world(3).run(without_memory_on_one, rank) == [(False, [expected] * 3, 0)] * 3


def disagree() -> list[str]:
    transport, found = joined(), list[str]()
    assert channel_of(transport) is not None
    first = transport.rank == 0
    for number in range(3):
        try:
            if number == 1 and not first:
                transport.send("broadcast_object", b"", 0)
            elif first:
                transport.exchange("gather", b"of the first")
            else:
                transport.exchange("reduce (sum)", b"of another" * 30_000)
        except CollectiveMismatch as error:
            found.append(str(error))
        found.append(str(transport.exchange("all", bytes([transport.rank]))))
    release()
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_a_disagreement_is_told_on_every_rank_and_leaves_nothing_behind(size: int, world: MakePool) -> None:
    """Also where one kind of exchange meets the other."""
    found = world(size).run(disagree)
    here = re.escape(Path(__file__).name)
    for rank, (one, after, sent, after_sent, *_) in enumerate(found):
        assert after == after_sent == str([bytes([other]) for other in range(size)])
        gather = rf"\n  rank 0: gather at \S*{here}:(\d+)"
        other = re.search(rf"{gather}\n  rank 1: reduce \(sum\) at \S*{here}:(\d+)\n", one)
        assert other is not None
        assert int(other[2]) == int(other[1]) + 2
        assert one == found[0][0]
        name = max(rank, 1)
        assert re.search(rf"{gather}\n  rank {name}: broadcast_object at \S*{here}:(\d+)\n", sent)


def disagree_with_a_source() -> str | None:
    """Rank 0 sends, and hears nothing of what the others do."""
    transport = joined()
    try:
        if transport.rank == 0:
            transport.send("broadcast_object", b"x", 0)
        else:
            transport.send("broadcast_object_list", b"", 0)
    except CollectiveMismatch as error:
        return str(error)
    finally:
        transport.barrier()
        release()
    return None


def test_who_hears_a_source_that_does_something_else_says_so(world: MakePool) -> None:
    source, *others = world(3).run(disagree_with_a_source)
    assert source is None
    for rank, text in enumerate(others, 1):
        assert text is not None
        assert re.search(rf"\n  rank 0: broadcast_object at .*\n  rank {rank}: broadcast_object_list at ", text)


def too_much() -> tuple[str, list[bytes]]:
    transport, refused = joined(), ""
    try:
        transport.agree("reduce", part=bytes(transport.inline_bytes + 1))
    except ValueError as error:
        refused = str(error)
    after = transport.exchange("after", b"x")
    release()
    return refused, after


def test_a_part_that_would_be_written_into_the_next_slot_is_refused(world: MakePool) -> None:
    room = 1 << 17
    words = f"reduce: a part of {room + 1} bytes about 0; {room} and 16 fit into a message"
    assert world(2).run(too_much) == [(words, [b"x", b"x"])] * 2
