"""Nobody waits in vain for a message through shared memory."""

import itertools

import pytest
from accel_comm.transports.shared_memory import CHECK_S, PAUSE_S, SLOTS
from shared_memory_channels import Clock, Lost, channels, gone, hear, message, status_stores, tell

#: seconds of the test's own clock within which one who waits in vain must have heard of it
SOON_S = 2.0


def test_of_one_that_has_closed_the_last_messages_are_read(clock: Clock) -> None:
    first, second = channels(2, limit_s=1000)
    for number in range(SLOTS):
        tell(first, message(0, number, 90))
    first.close()
    assert [hear(second) for _ in range(SLOTS)] == [message(0, number, 90) for number in range(SLOTS)]
    assert clock.now == 0
    with pytest.raises(Lost, match=r"^rank 0 has ended$"):
        hear(second)
    assert clock.now < SOON_S


def test_of_one_that_has_died_the_last_messages_are_read(clock: Clock) -> None:
    on = status_stores(2)
    first, second = channels(2, limit_s=1000, on=on)
    tell(first, b"its last")
    on[0].post(f"host/{on[0].host}", [0, gone()])
    assert hear(second) == b"its last"
    with pytest.raises(Lost, match=r"^no message from rank 0 in \d\.\d s$"):
        hear(second)
    assert clock.now < SOON_S


def heard_at_last(clock: Clock, moment: int, how: str) -> bytes:
    """What is heard of one that says its last and ends, all while the other sleeps for that time of its wait."""
    on = status_stores(2)
    first, second = channels(2, on=on)
    left = itertools.count(1)

    def step() -> None:
        if next(left) == moment:
            first.post(b"its last")
            if how == "closes":
                first.close()
            else:
                on[0].post(f"host/{on[0].host}", [0, gone()])

    clock.step = step
    return hear(second)


@pytest.mark.parametrize("how", ["closes", "dies"])
def test_a_message_that_comes_just_before_the_end_is_read(how: str, clock: Clock) -> None:
    """Whenever that is: also between a look for the message and one at the process."""
    began, moment = 0.0, 0
    while clock.now - began < 1.5 * CHECK_S:
        began, moment = clock.now, moment + 1
        assert heard_at_last(clock, moment, how) == b"its last"


def test_one_that_has_closed_is_not_waited_for_by_who_writes(clock: Clock) -> None:
    first, second = channels(2)
    second.close()
    for _ in range(3 * SLOTS):
        tell(first)
    assert clock.now == 0


def test_one_that_has_died_is_not_waited_for_by_who_writes(clock: Clock) -> None:
    on = status_stores(3)
    first, second, third = channels(3, limit_s=1000, on=on)
    on[0].post(f"host/{on[0].host}", [2, gone()])
    for _ in range(SLOTS):
        tell(first)
        tell(second)
    tell(third)
    tell(first)  # in the place of its first message, which the third has read
    with pytest.raises(Lost, match="from rank 2"):
        tell(first)
    assert clock.now < SOON_S


@pytest.mark.parametrize("who", ["this machine", "elsewhere"])
@pytest.mark.parametrize("limit_s", [0.3, 30.0])
def test_a_wait_has_a_limit(who: str, limit_s: float, clock: Clock) -> None:
    """Of one that lives, and of one of which nothing is known."""
    on = status_stores(2)
    if who == "elsewhere":
        on[0].post(f"host/{on[0].host}", [9, gone()])  # and rank 0 is elsewhere
    _, second = channels(2, limit_s=limit_s, on=on)
    with pytest.raises(Lost, match=rf"^no message from rank 0 in {limit_s:.0f}\.\d s$" if limit_s > 1 else "in 0"):
        hear(second)
    assert limit_s < clock.now < limit_s + 3 * CHECK_S


def test_a_long_wait_costs_little_and_is_over_at_once(clock: Clock) -> None:
    first, second = channels(2, limit_s=1000)

    def step() -> None:
        if clock.now > 10 and first.number == 0:
            first.post(b"late")

    clock.step = step
    assert hear(second) == b"late"
    assert clock.now < 10 + 2 * PAUSE_S
    assert max(clock.naps) <= PAUSE_S
    assert len(clock.naps) < 1.2 * 10 / PAUSE_S
