"""Who is given up, on boards whose threads stand still: the test lets each launcher look, at the time that it says."""

import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from accel_launch.nodes import message_loop
from accel_launch.nodes.board import Board
from accel_launch.nodes.board_server import BoardServer
from accel_launch.nodes.message_line import MessageLine
from accel_launch.nodes.silence import BEAT_S, SILENCE_S, SILENT, Silence
from suite.soak import in_soak

STEP_S = 0.25


class Launchers:
    """Three launchers, the first of which serves the board; a launcher that is stopped does not look."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asleep: set[int] = set()
        self.backwards = False

    def meet(self) -> None:
        """Opens the board for all."""
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        self.server = BoardServer(listening, "launcher 0")
        self.boards = [Board(socket.create_connection(address), f"launcher {number}") for number in range(3)]
        self.run(2)
        assert all(one.greeted for one in self.boards)

    def end(self) -> None:
        """Closes all connections."""
        self.server._listening.close()
        for loop in (self.server._loop, *(one._loop for one in self.boards)):
            for line in loop.lines.copy():
                loop.drop(line)
            loop._selector.close()

    def monotonic(self) -> float:
        """The time of all clocks."""
        return self.now_s

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            looks: list[Callable[[], None]] = [
                self._server_looks,
                *(partial(self._looks, number) for number in range(3)),
            ]
            for look in looks[:: -1 if self.backwards else 1]:
                look()

    def _server_looks(self) -> None:
        if 0 not in self.asleep:
            self.server._loop.turn(0)

    def _looks(self, number: int) -> None:
        if number not in self.asleep and self.boards[number].lost is None:
            self.boards[number]._loop.turn(0)

    def wake(self) -> None:
        """Lets all run again."""
        self.asleep.clear()

    def blamed(self) -> set[int]:
        """The machines that anybody has given up, by what each launcher knows."""
        names = [one.name for one in self.boards]
        told = {names.index(name) for one in self.boards for name in one.gone}
        for number, one in enumerate(self.boards):
            if one.lost is not None:
                told.add(number if one.lost.own else 0)
        return told


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launchers]:
    """Three launchers that have met."""
    found = Launchers()
    monkeypatch.setattr(message_loop, "time", found)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    found.meet()
    yield found
    found.end()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("seconds", [SILENCE_S + 4, 60.0])
def test_a_stopped_launcher_is_named_by_all_and_by_itself(launchers: Launchers, number: int, seconds: float) -> None:
    launchers.asleep.add(number)
    launchers.run(seconds)
    living = [one for at, one in enumerate(launchers.boards) if at != number]
    for one in living:
        if number == 0:
            assert one.lost is not None
            assert (str(one.lost), one.lost.own) == (SILENT, False)
        else:
            assert one.gone == {f"launcher {number}": SILENT}
            assert one.lost is None
    launchers.wake()
    launchers.run(1)
    lost = launchers.boards[number].lost
    assert lost is not None
    assert (str(lost), lost.own) == (SILENT, True)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("quarters", [8, 18, 22, 26, 31, *in_soak(*({*range(1, 41)} - {8, 18, 22, 26, 31}))])
def test_nobody_else_is_named_however_long_it_was_stopped(launchers: Launchers, number: int, quarters: int) -> None:
    """All agree where the time is just that of the judgement, too."""
    launchers.backwards = bool(quarters % 2)
    launchers.run(quarters % 9 * STEP_S)
    launchers.asleep.add(number)
    launchers.run(quarters * STEP_S)
    launchers.wake()
    launchers.run(20)
    blamed = launchers.blamed()
    assert blamed <= {number}
    assert blamed or quarters * STEP_S < SILENCE_S + 2 * STEP_S + BEAT_S
    assert not blamed or quarters * STEP_S > SILENCE_S - 2 * STEP_S


def test_a_job_whose_launchers_all_stop_and_go_on_is_left_alone(launchers: Launchers) -> None:
    """As a scheduler does that suspends a job."""
    launchers.asleep |= {0, 1, 2}
    launchers.run(600)
    for number in range(3):
        launchers.asleep.remove(number)
        launchers.run(1)
    launchers.run(20)
    assert launchers.blamed() == set()


def test_a_stop_of_the_past_is_not_the_cause_of_a_later_loss(launchers: Launchers) -> None:
    launchers.asleep |= {0, 1, 2}
    launchers.run(600)
    launchers.wake()
    launchers.run(20)
    for line in launchers.server._loop.lines:
        line.connection.close()
    launchers.asleep.add(0)
    launchers.run(1)
    assert [one.lost is not None and one.lost.own for one in launchers.boards[1:]] == [False, False]


def test_quiet_machines_cost_a_message_in_two_seconds_each_way(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    put = MessageLine.put

    def counted(line: MessageLine, message: bytes) -> None:
        sent.append(message)
        put(line, message)

    monkeypatch.setattr(MessageLine, "put", counted)
    launchers.run(60)
    assert len(sent) <= 2 * 3 * 30


def test_time_in_which_the_judge_was_stopped_counts_for_nobody() -> None:
    silence = Silence(0.0)
    silence.hear("other")
    assert silence.look(1000.0)
    assert silence.silent() == []
    for second in range(1, 7):
        assert not silence.look(1000.0 + second)
    assert silence.silent() == []
    silence.look(1007.0)
    assert silence.silent() == ["other"]
