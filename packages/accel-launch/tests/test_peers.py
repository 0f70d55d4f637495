"""What machines tell each other, over a store that is a mapping, and by a clock that stands still."""

import pytest
from accel_launch.nodes.peers import SILENCE_S, Peers


class MappingStore:
    """The requests of a store of torch that machines make."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def add(self, key: str, number: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + number)
        return int(self.values[key])


class Clock:
    """Stands for the module `time`; nobody may wait by it."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        pytest.fail(f"waits for {seconds} s")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("accel_launch.nodes.peers.time", clock)
    return clock


def test_a_machine_that_gives_no_sign_of_life_is_announced_once(clock: Clock) -> None:
    store = MappingStore()
    zero, one, two = (Peers(store, machine, 3) for machine in range(3))
    for second in range(30):
        clock.now_s += 1
        for peers in (zero, one, two)[: 3 if second < 5 else 2]:
            peers.look()
        silent_s = second - 5  # the first one has heard the last sign of life when it looked again
        assert [failure.machine for failure in zero.failures] == ([2] if silent_s > SILENCE_S else [])
    assert one.failures == zero.failures
    assert zero.failures[0].lost


def test_the_first_machine_waits_for_no_lost_one_to_leave(clock: Clock) -> None:
    """It would hold up the end of the job, which is to come soon after a loss."""
    store = MappingStore()
    zero, one, _ = (Peers(store, machine, 3) for machine in range(3))
    for _ in range(9):
        clock.now_s += 1
        zero.look()
        one.look()
        store.add("beats 1", 1)
    assert [failure.machine for failure in zero.failures] == [2]
    one.leave()
    zero.leave()
