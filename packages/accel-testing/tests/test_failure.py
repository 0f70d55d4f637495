from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from accel_testing import MakePool, NotSendable, RankFailure, stretched
from pool_jobs import is_running, rank, start_a_long_child, total


def fail_on_one() -> None:
    if dist.get_rank() == 1:
        print("I am about to fail")
        raise KeyError("the cause is here")


def fail_on_one_and_wait_on_the_others() -> None:
    fail_on_one()
    total()


def hang_on_one() -> None:
    if dist.get_rank() == 1:
        lie_down()


def lie_down() -> None:
    time.sleep(600)


def die_on_one() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def leave_by_the_back_door() -> None:
    os._exit(3)


def sys_exit() -> None:
    sys.exit(0)


def pid() -> int:
    return os.getpid()


def fail_and_leave_a_child(note: str) -> None:
    Path(note).write_text(str(start_a_long_child()))
    raise ValueError("with a child left")


def lock() -> threading.Lock:
    return threading.Lock()


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


def raise_odd() -> None:
    raise Odd(1, 2)


def test_the_traceback_of_a_failing_rank_is_shown(world: MakePool) -> None:
    with pytest.raises(RankFailure) as failure:
        world(2).run(fail_on_one)
    text = str(failure.value)
    assert "fail_on_one on 2 ranks: rank 1 failed" in text
    assert 'raise KeyError("the cause is here")' in text
    assert "--- rank 1 printed ---\nI am about to fail" in text
    assert list(failure.value.errors) == [1]
    assert isinstance(failure.value.errors[1], KeyError)


def test_ranks_that_wait_for_a_failed_rank_are_not_waited_for(world: MakePool) -> None:
    started = time.monotonic()
    with pytest.raises(RankFailure, match="the cause is here") as failure:
        world(2).run(fail_on_one_and_wait_on_the_others, timeout_s=60)
    assert time.monotonic() - started < 30
    assert set(failure.value.errors) == {1}
    assert "rank 0 was still running 2 s after another rank failed; its stacks" in str(failure.value)
    assert "in total" in str(failure.value)


def test_the_stack_of_a_hanging_rank_is_shown_and_the_pool_is_killed(world: MakePool) -> None:
    pair = world(2)
    pids = pair.run(pid)
    with pytest.raises(RankFailure, match="rank 1 failed") as failure:
        pair.run(hang_on_one, timeout_s=1)
    assert "in lie_down" in str(failure.value)
    assert isinstance(failure.value.errors[1], TimeoutError)
    assert 0 not in failure.value.errors
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(("function", "how"), [(die_on_one, "SIGSEGV"), (leave_by_the_back_door, "exit code 3")])
def test_a_rank_that_dies_is_reported_with_how_it_died(world: MakePool, function: object, how: str) -> None:
    assert callable(function)
    pair = world(2)
    pair.run(pid)  # both have joined: one that dies earlier is missed by the other
    with pytest.raises(RankFailure, match=f"rank 1 died: .*{how}") as failure:
        pair.run(function)
    assert isinstance(failure.value.errors[1], ChildProcessError)


def test_the_stack_of_a_rank_that_crashed_is_in_what_it_printed(world: MakePool) -> None:
    with pytest.raises(RankFailure, match="in die_on_one"):
        world(2).run(die_on_one)


def test_sys_exit_in_a_rank_is_a_failure(world: MakePool) -> None:
    with pytest.raises(RankFailure) as failure:
        world(1).run(sys_exit)
    assert isinstance(failure.value.errors[0], SystemExit)


def test_a_failed_world_runs_nothing_more(world: MakePool) -> None:
    pair = world(2)
    with pytest.raises(RankFailure):
        pair.run(fail_on_one)
    with pytest.raises(RuntimeError, match="ask for a fresh one"):
        pair.run(rank)
    assert world(2).run(rank) == [0, 1]


def test_an_exception_that_does_not_pickle_arrives_as_text(world: MakePool) -> None:
    with pytest.raises(RankFailure, match="Odd: odd") as failure:
        world(1).run(raise_odd)
    assert isinstance(failure.value.errors[0], RuntimeError)


def test_a_result_that_does_not_pickle_fails_its_rank(world: MakePool) -> None:
    with pytest.raises(RankFailure, match=r"the result .* does not pickle"):
        world(1).run(lock)


def test_a_function_inside_a_function_is_refused_before_it_is_sent(world: MakePool) -> None:
    single = world(1)
    with pytest.raises(NotSendable, match="top level of a module"):
        single.run(lambda: 1)
    assert single.run(rank) == [0]


def test_children_of_a_failed_rank_are_killed_too(world: MakePool, tmp_path: Path) -> None:
    with pytest.raises(RankFailure, match="with a child left"):
        world(1).run(fail_and_leave_a_child, str(tmp_path / "pid"))
    wait_until_gone([int((tmp_path / "pid").read_text())])


SESSION = """
import os, sys, time
from pathlib import Path
from accel_testing import ProcessPool
def hang(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)
if __name__ == "__main__":
    ProcessPool(2).run(hang, sys.argv[1], timeout_s=600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_do_not_outlive_a_session_that_is_stopped(tmp_path: Path, how: signal.Signals) -> None:
    script, folder = tmp_path / "session.py", tmp_path / "pids"
    script.write_text(SESSION)
    folder.mkdir()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    session = subprocess.Popen([sys.executable, script, folder], env=environ, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + stretched(60)
    while len(pids := [int(file.name) for file in folder.iterdir()]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert all(map(is_running, pids))
    session.send_signal(how)
    assert session.wait(timeout=stretched(20)) != 0
    wait_until_gone(pids)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + stretched(60)
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, pids))
