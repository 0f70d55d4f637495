"""StoreExchange: who waits for another's work waits as long as it lives."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist
from accel_comm import CollectiveMismatch, PeerFailed
from accel_comm.status_store import BEAT, StatusStore
from accel_state import PartialState, release, store_exchange
from accel_state.store_exchange import StoreExchange
from accel_testing import MakePool, stretched
from torch._C._distributed_c10d import HashStore

HERE = "train.py:7"


def pair() -> tuple[StoreExchange, StoreExchange, StatusStore]:
    """The turns of two ranks, and the status store of the first."""
    store = HashStore()
    first, second = StatusStore(store, 0), StatusStore(store, 1)
    return StoreExchange(first), StoreExchange(second), first


def take(exchange: StoreExchange, site: str = HERE, failure: str | None = None) -> None:
    """A turn that fails, or not."""
    with suppress(KeyError), exchange.lead(site):
        if failure is not None:
            raise KeyError(failure)


@pytest.mark.parametrize("failure", [None, "no such data set"])
def test_how_a_turn_ended_is_heard(failure: str | None) -> None:
    """T26."""
    first, second, _ = pair()
    take(first, failure=failure)
    with nullcontext() if failure is None else pytest.raises(PeerFailed, match="rank 0: KeyError: 'no such data"):
        second.wait(0, HERE)


def test_turns_within_turns_end_in_their_order() -> None:
    """T26: the outer one is not over when the inner one is."""
    first, second, store = pair()
    with suppress(KeyError), first.lead(HERE):
        take(first, "train.py:8")
        assert store.read("turn/2/0") is not None
        assert store.read("turn/1/0") is None
        raise KeyError("outer")
    with pytest.raises(PeerFailed, match="outer"):
        second.wait(0, HERE)
    second.wait(0, "train.py:8")


def test_a_turn_that_only_one_rank_took_is_found() -> None:
    first, second, _ = pair()
    take(first, "a/train.py:3")
    with pytest.raises(CollectiveMismatch, match=r"rank 0: .* at a/train.py:3\n  rank 1: .* at train.py:7"):
        second.wait(0, HERE)


def test_a_turn_is_waited_for() -> None:
    first, second, _ = pair()
    heard = threading.Event()

    def wait() -> None:
        second.wait(0, HERE)
        heard.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not heard.wait(0.5)
    take(first)
    assert heard.wait(stretched(60))
    thread.join()


def test_each_turn_is_told_from_the_one_before() -> None:
    first, second, _ = pair()
    for failure in ("a", None, "b", "a", None):
        take(first, failure=failure)
        with nullcontext() if failure is None else pytest.raises(PeerFailed, match=f"KeyError: '{failure}'"):
            second.wait(0, HERE)


def test_ranks_that_take_turns_hear_each_other() -> None:
    first, second, _ = pair()
    take(first, failure="of the first")
    with pytest.raises(PeerFailed, match="of the first"):
        second.wait(0, HERE)
    take(second, failure="of the second")
    with pytest.raises(PeerFailed, match="of the second"):
        first.wait(1, HERE)


def test_one_that_is_gone_is_not_waited_for() -> None:
    """T26: immediate when it dies."""
    _, second, store = pair()
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    store.post(f"host/{store.host}", [0, gone.pid])
    with pytest.raises(PeerFailed, match="rank 0, for which others wait, is gone"):
        second.wait(0, HERE)


def test_one_that_is_gone_after_its_turn_has_had_it() -> None:
    first, second, store = pair()
    take(first)
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    store.post(f"host/{store.host}", [0, gone.pid])
    second.wait(0, HERE)


def test_one_on_another_machine_lives_while_its_heart_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """T26: process ids say nothing there."""
    monkeypatch.setattr(store_exchange, "SILENT_S", stretched(1))
    monkeypatch.setattr(store_exchange, "MOST_S", 0.02)
    _, second, store = pair()
    store.post(f"host/{store.host}", [9, 1])  # and rank 0 is elsewhere
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            store.heartbeat(BEAT)

    thread = threading.Thread(target=beat)
    thread.start()
    threading.Timer(stretched(2), stop.set).start()
    began = time.monotonic()
    with pytest.raises(PeerFailed, match="is gone"):
        second.wait(0, HERE)
    thread.join()
    assert time.monotonic() - began > stretched(2)


def test_a_store_that_is_gone_took_the_first_one_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> NoReturn:
        raise RuntimeError("Connection reset")

    _, second, _ = pair()
    monkeypatch.setattr(StatusStore, "read", lost)
    with pytest.raises(PeerFailed, match=r"rank 0, or the process that serves the store, is gone \(Connection reset\)"):
        second.wait(0, HERE)


@pytest.mark.parametrize("yes", [True, False])
def test_ranks_agree_once_all_have_said_what_they_think(yes: bool) -> None:
    first, second, _ = pair()
    verdicts = list[bool]()
    thread = threading.Thread(target=lambda: verdicts.append(first.agree("saved", [0, 1], True)))
    thread.start()
    assert second.agree("saved", [0, 1], yes) == yes
    thread.join()
    assert verdicts == [yes]


def test_a_rank_that_is_gone_is_not_waited_for_unless_it_has_said_yes() -> None:
    _, second, store = pair()
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    store.post(f"host/{store.host}", [0, gone.pid])
    with pytest.raises(PeerFailed, match="rank 0, for which others wait, is gone"):
        second.agree("saved", [0, 1], True)
    store.post("saved again/0", True)
    assert second.agree("saved again", [0, 1], True)


def test_a_stopped_process_that_serves_the_store_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request would end, and the thread that waits would outlive its script."""

    def refused(*_: Any) -> NoReturn:
        raise AssertionError("a request")

    monkeypatch.setattr(store_exchange, "SILENT_S", 0.1)
    _, second, store = pair()
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    server = subprocess.Popen([sys.executable, "-Sc", "import signal; signal.pause()"])
    try:
        store.post(f"host/{store.host}", [0, server.pid])
        server.send_signal(signal.SIGSTOP)
        while not second._store.is_stopped():
            second._store.alive(0)
        for name in ("post", "read", "first"):
            monkeypatch.setattr(StatusStore, name, refused)
        with pytest.raises(PeerFailed, match="rank 0, for which others wait, is stopped"):
            second.agree("saved", [0], True)
        # a save has several exchanges, and the second is not to wait as long again
        monkeypatch.setattr(time, "sleep", refused)
        with pytest.raises(PeerFailed, match="rank 0, for which others wait, is stopped"):
            second.exchange_notes("named", [0], True)
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("verdict", [None, True])
def test_an_ended_script_keeps_to_the_verdict_without_more_waiting(
    verdict: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens on another machine is unknown; while the script runs, its own exchanges find out."""
    monkeypatch.setattr(store_exchange, "SILENT_S", 0.1)
    monkeypatch.setattr(store_exchange, "MOST_S", 0.02)
    _, second, store = pair()
    store.post(f"host/{store.host}", [9, 1])  # and rank 0 is elsewhere
    if verdict is not None:
        store.post("saved/verdict", verdict)  # of a third rank, that has heard all
    ended = threading.Thread(target=int)
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    with pytest.raises(PeerFailed, match="rank 0, for which") if verdict is None else nullcontext():
        assert second.agree("saved", [0, 1], True)


def test_no_rank_agrees_without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> NoReturn:
        raise RuntimeError("Connection reset")

    _, second, _ = pair()
    monkeypatch.setattr(StatusStore, "post", lost)
    with pytest.raises(PeerFailed, match=r"the process that serves the store is gone \(Connection reset\)"):
        second.agree("saved", [0, 1], True)


def taken(folder: Path) -> list[bool]:
    """Whether the main process was out of its block when this one came in, in each of three runs of this process."""
    found = []
    for number in range(3):
        state = PartialState(cpu=True)
        with state.main_process_first():
            if state.is_main_process:
                time.sleep(0.5)
                (folder / str(number)).touch()
            found.append((folder / str(number)).exists())
        state.wait_for_everyone()
        release()
    return found


def test_each_run_of_a_process_has_turns_of_its_own(world: MakePool, tmp_path: Path) -> None:
    assert world(2).run(taken, tmp_path) == [[True] * 3] * 2


def lists_read_in_a_wait() -> list[str]:
    """The lists that a rank reads in the store while it waits for a rank on another machine."""
    lists, listed = list[str](), StatusStore._listed

    def counted(store: StatusStore, name: str) -> list[Any]:
        lists.append(name)
        return listed(store, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_comm.status_store.own_host", lambda: f"machine {dist.get_rank()}")
        state = PartialState(cpu=True)
        patch.setattr(StatusStore, "_listed", counted)
        with state.main_process_first():
            if state.is_main_process:
                time.sleep(0.5)
        state.wait_for_everyone()
    release()
    return lists


def test_a_wait_for_another_machine_asks_for_no_list_of_processes(world: MakePool) -> None:
    """Each rank of a machine would read the list of all of them, many times a second."""
    assert world(2).run(lists_read_in_a_wait) == [[], []]


def test_a_note_that_says_nothing_is_refused() -> None:
    """The store has no other word for a note that is not there yet."""
    with pytest.raises(ValueError, match=r"exchange_notes\('parts'\): None looks like"):
        pair()[0].exchange_notes("parts", [0, 1], None)
