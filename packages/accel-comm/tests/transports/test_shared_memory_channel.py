"""Messages through shared memory arrive whole and in order."""

import itertools
from collections.abc import Callable
from typing import NoReturn

import pytest
from accel_comm.transports import shared_memory
from accel_comm.transports.shared_memory import SLOTS, SharedMemoryChannel
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_memory_channels import LENGTHS, SOURCES, Clock, Lost, Plan, assert_arrives, channels, hear, message, tell


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 4),
    plan=st.lists(st.tuples(SOURCES, st.lists(LENGTHS, min_size=4, max_size=4)), max_size=3 * SLOTS),
    slow=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3 * SLOTS)), max_size=6),
)
def test_messages_of_any_length_arrive_whole_and_in_order(size: int, plan: Plan, slow: set[tuple[int, int]]) -> None:
    assert_arrives(channels(size), plan, slow)


@pytest.mark.parametrize("start", [2**32 - 3, 2**40])
def test_numbers_may_be_large(start: int) -> None:
    every = channels(3)
    for channel in every:
        channel.number = start
        channel.done()
    assert_arrives(every, [(None, [9, 0, 700]), (1, [0, 80, 0])] * SLOTS, set())


@settings(deadline=None)
@given(
    lengths=st.lists(LENGTHS, min_size=1, max_size=4 * SLOTS),
    readers=st.integers(1, 3),
    turns=st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
def test_a_source_waits_for_the_slowest_reader(lengths: list[int], readers: int, turns: list[int]) -> None:
    """The readers do nothing until the source waits, and then as little as they can."""
    source, *others = channels(1 + readers)
    sent = [message(0, number, length) for number, length in enumerate(lengths)]
    heard: list[list[bytes]] = [[] for _ in others]
    order = itertools.cycle(turns)

    def step() -> None:
        assert source.number == min(map(len, heard)) + SLOTS
        behind = [reader for reader in range(readers) if len(heard[reader]) < source.number]
        reader = behind[next(order) % len(behind)]
        heard[reader].append(hear(others[reader]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory, "time", Clock(step))
        for one in sent:
            tell(source, one)
        assert min(map(len, heard)) >= len(sent) - SLOTS
        for number in range(len(sent)):
            for channel, found in zip(others, heard, strict=True):
                if len(found) == number:
                    found.append(hear(channel))
    assert heard == [sent] * readers


def test_what_a_reader_still_wants_is_not_written_over(clock: Clock) -> None:
    """It has posted its own message of the number, and not read the other's."""
    source, reader = channels(2, limit_s=1)
    for number in range(SLOTS):
        tell(source, message(0, number, 50))
    reader.post(b"")
    with pytest.raises(Lost):
        source.post(b"too much")
    assert reader.read(0) == message(0, 0, 50)


def piecewise(
    reader: SharedMemoryChannel, writer: SharedMemoryChannel, content: bytes, arrange: Callable[[list[int]], list[int]]
) -> bytes:
    """What is read of a message whose words, of which the first is its number, are seen in an order of their own."""
    memory = writer._memory
    place = writer._place(0, writer.number + 1)
    end = place + 16 + max(8, len(content) + -len(content) % 8)
    before = memory[place:end]
    writer.post(content)
    after = memory[place:end]
    memory[place:end] = before
    words = arrange([at for at in range(0, len(after), 8) if before[at : at + 8] != after[at : at + 8]])

    def step() -> None:
        at = words.pop(0)  # nothing is left: it was not read when it was all there
        memory[place + at : place + at + 8] = after[at : at + 8]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory, "time", Clock(step))
        reader.post(b"")
        return reader.read(0)


def lapped(rounds: int) -> tuple[SharedMemoryChannel, SharedMemoryChannel]:
    """A reader and a writer that have had some rounds."""
    writer, reader = channels(2)
    for number in range(rounds):
        tell(writer, message(0, number, 40))
        hear(reader)
    return reader, writer


@settings(deadline=None)
@given(st.integers(0, SLOTS + 1), st.binary(min_size=1, max_size=100), st.data())
def test_a_message_is_read_when_it_is_whole(rounds: int, content: bytes, data: st.DataObject) -> None:
    reader, writer = lapped(rounds)

    assert piecewise(reader, writer, content, lambda words: data.draw(st.permutations(words))) == content


def test_a_checksum_of_an_old_message_never_fits_a_new_beginning() -> None:
    """The first byte and the number change by the same bits, and the old length and checksum are still there."""
    reader, writer = lapped(SLOTS)
    old, (first, new) = message(0, 0, 40), (1, 1 + SLOTS)
    content = bytes([old[0] ^ first ^ new])
    assert piecewise(reader, writer, content, lambda words: [words[0], words[2], words[1]]) == content


@pytest.mark.parametrize("rounds", [0, SLOTS])
def test_an_old_message_is_not_taken_for_the_new_one(rounds: int) -> None:
    """Some processors let a reader see the number before all the rest: where there was nothing, and where there was."""
    reader, writer = lapped(rounds)
    assert piecewise(reader, writer, b"the new one", lambda words: words) == b"the new one"


def test_a_message_that_is_never_whole_is_not_waited_for_for_ever(clock: Clock) -> None:
    reader, writer = lapped(1)
    writer.post(b"content")
    place = writer._place(0, writer.number)
    writer._memory[place + 16] ^= 1
    reader.post(b"")
    with pytest.raises(Lost, match="message 2 of rank 0 is damaged"):
        reader.read(0)
    assert 5 < clock.now < 6


def test_who_was_interrupted_before_it_wrote_may_write(clock: Clock) -> None:
    source, reader = channels(2)
    for number in range(SLOTS):
        tell(source, message(0, number, 50))

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt

    clock.step = interrupt
    with pytest.raises(KeyboardInterrupt):
        source.post(b"not written")
    clock.step = lambda: None
    found = [hear(reader)]
    tell(source, message(0, SLOTS, 50))
    found += [hear(reader) for _ in range(SLOTS)]
    assert found == [message(0, number, 50) for number in range(SLOTS + 1)]
