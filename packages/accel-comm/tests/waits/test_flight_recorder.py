"""What a process exchanges is noted where others can read it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from accel_comm import flight_recorder
from accel_comm.flight_recorder import KEPT, SIZE, FlightRecorder, call_site, read
from hypothesis import example, given
from hypothesis import strategies as st

HERE = __file__


def line_of(marker: str) -> int:
    """The number of the line of this file that ends in the marker."""
    lines = Path(HERE).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))


def from_file(path: str, recorder: FlightRecorder, what: str = "gather", data: str = "") -> None:
    """An exchange begun by line 3 of a script with that name."""
    begin = compile("\n\nrecorder.begin(what, data)", path, "exec")
    exec(begin, {"__name__": "__main__", "recorder": recorder, "what": what, "data": data})


def test_a_flight_recorder_begins_empty() -> None:
    assert FlightRecorder().newest() is None


def test_an_exchange_on_a_device_ends_when_the_device_says_so(tmp_path: Path) -> None:
    """NCCL's wait returns when the exchange is queued: a device may hang in it for ever."""
    recorder, over = FlightRecorder(tmp_path / "0"), [False]
    recorder.begin("all_gather")
    recorder.end(lambda: over[0])
    assert [record.ended for record in read(tmp_path / "0")] == [None]
    over[0] = True
    flight_recorder.settle()  # as before a failure is told
    (record,) = read(tmp_path / "0")
    assert record.ended is not None


def test_the_next_exchange_leaves_an_exchange_of_the_device_as_it_is(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "0")
    recorder.begin("all_gather")
    recorder.end(lambda: False)
    recorder.begin("reduce")
    recorder.end()
    gathered, reduced = read(tmp_path / "0")
    assert gathered.ended is None
    assert reduced.ended is not None


def test_an_exchange_is_noted_with_the_line_that_asked_for_it() -> None:
    """T4: operation, shape, dtype and call site."""
    recorder, before = FlightRecorder(), time.monotonic()
    site = recorder.begin("all_gather", "float32[4]")  # begins
    record = recorder.newest()
    assert record is not None
    assert site == record.site == f"{HERE}:{line_of('begins')}"
    assert (record.number, record.what, record.data) == (1, "all_gather", "float32[4]")
    assert (record.patient, record.ended) == (False, None)
    assert before <= record.began <= time.monotonic()
    assert str(record) == f"all_gather of float32[4] at {site}"


def test_what_has_no_data_is_said_without_it() -> None:
    recorder = FlightRecorder()
    site = recorder.begin("wait_for_everyone")
    assert str(recorder.newest()) == f"wait_for_everyone at {site}"


def test_an_exchange_is_over_once_it_has_ended() -> None:
    recorder = FlightRecorder()
    recorder.begin("gather")
    recorder.end()
    record = recorder.newest()
    assert record is not None
    assert record.ended is not None
    assert record.began <= record.ended <= time.time()
    recorder.begin("reduce")
    newest = recorder.newest()
    assert newest is not None
    assert (newest.number, newest.what, newest.ended) == (2, "reduce", None)


def test_a_wait_that_may_last_says_so_to_its_end() -> None:
    """T26."""
    recorder = FlightRecorder()
    for patient in (True, False):
        recorder.begin("main_process_first", patient=patient)
        for over in (False, True):
            if over:
                recorder.end()
            record = recorder.newest()
            assert record is not None
            assert record.patient is patient


def test_the_newest_exchanges_are_kept_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "0"
    recorder = FlightRecorder(path)
    for number in range(3 * KEPT + 5):
        recorder.begin(f"what {number + 1}")
        recorder.end()
    found = read(path)
    assert [one.number for one in found] == list(range(2 * KEPT + 6, 3 * KEPT + 6))
    assert [one.what for one in found] == [f"what {one.number}" for one in found]
    assert all(one.ended is not None for one in found)
    assert path.stat().st_size == KEPT * SIZE


def test_what_was_left_out_is_kept_until_it_is_taken_part_in() -> None:
    recorder = FlightRecorder()
    recorder.begin("used")
    for _ in range(100):
        recorder.skip("used")
        recorder.begin("gather")
    assert recorder.skipped == {"used": (2, 201)}
    assert 200 in range(*recorder.skipped["used"])
    recorder.begin("used")
    assert recorder.skipped == {}
    recorder.skip("used")
    assert recorder.skipped == {"used": (203, 204)}


def test_a_shorter_note_in_the_place_of_a_longer_one_has_nothing_of_it() -> None:
    recorder = FlightRecorder()
    recorder.begin("long" * 20, "float32[1, 2, 3, 4, 5]")
    for _ in range(KEPT):
        site = recorder.begin("a")
    assert str(recorder.newest()) == f"a at {site}"


def test_where_there_is_no_file_there_are_no_exchanges(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == []
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty") == []


def test_a_file_of_another_job_is_left_alone(tmp_path: Path) -> None:
    """A job that a process of another one starts inherits its variables."""
    FlightRecorder(tmp_path / "0").begin("of the outer job")
    other = FlightRecorder(tmp_path / "0")
    other.begin("of the inner one")
    assert [one.what for one in read(tmp_path / "0")] == ["of the outer job"]
    newest = other.newest()
    assert newest is not None
    assert newest.what == "of the inner one"


def test_without_a_folder_it_is_kept_in_memory(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "none" / "0")
    recorder.begin("gather")
    assert recorder.newest() is not None


KILLED = """
import os, sys
from pathlib import Path
from accel_comm.flight_recorder import FlightRecorder
recorder = FlightRecorder(Path(sys.argv[1]))
recorder.begin("gather")
recorder.end()
recorder.begin("reduce (mean)", "float32[8]")
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_notes_of_a_killed_process_can_be_read(number: int, tmp_path: Path) -> None:
    """Reliability 3c, fault test 32: SIGKILL and SIGABRT."""
    script, path = tmp_path / "script.py", tmp_path / "0"
    script.write_text(KILLED)
    assert subprocess.run([sys.executable, script, path, str(int(number))]).returncode == -number
    first, last = read(path)
    assert (first.what, first.ended is None) == ("gather", False)
    assert (str(last), last.ended) == (f"reduce (mean) of float32[8] at {script}:8", None)


def test_what_only_passes_on_is_not_the_line_that_asked() -> None:
    ours: dict[str, Any] = {"__name__": "accel_ops.gather", "call_site": call_site, "contextmanager": contextmanager}
    exec("def gather(): return call_site()\n@contextmanager\ndef first(): yield call_site()", ours)
    gather: Callable[[], str] = ours["gather"]
    assert gather() == f"{HERE}:{line_of('asks')}"  # asks
    assert partial(gather)() == f"{HERE}:{line_of('asks partly')}"  # asks partly
    with ours["first"]() as site:  # enters
        assert site == f"{HERE}:{line_of('enters')}"


def test_a_package_that_only_begins_like_ours_is_the_users() -> None:
    theirs: dict[str, Any] = {"__name__": "accelerated.loop", "call_site": call_site}
    exec(compile("def ask(): return call_site()", "/home/user/loop.py", "exec"), theirs)
    assert theirs["ask"]() == "/home/user/loop.py:1"


@example(["数据中心实验记录"] * 14)
@given(folders=st.lists(st.text("abc-_. é中😀", min_size=1, max_size=12), max_size=40))
def test_the_line_number_of_a_long_path_stays(folders: list[str]) -> None:
    """T4: both `file:line`."""
    recorder = FlightRecorder()
    from_file(f"/{'/'.join(folders)}/train.py", recorder)
    record = recorder.newest()
    assert record is not None
    assert record.site.endswith("train.py:3")


def test_the_line_stays_where_what_is_exchanged_has_many_dims() -> None:
    recorder = FlightRecorder()
    from_file(f"/{'folder/' * 20}train.py", recorder, "broadcast (from rank 1000)", f"float32{[12345] * 40}")
    record = recorder.newest()
    assert record is not None
    assert record.site.endswith("train.py:3")


@pytest.mark.parametrize("path", ["/home/a\tb/train.py", os.fsdecode(b"/home/\xe9t\xe9/train.py")])
def test_an_odd_path_hides_no_exchange(path: str) -> None:
    """A path may have a tab in it, or bytes that are no text."""
    recorder = FlightRecorder()
    from_file(path, recorder)
    record = recorder.newest()
    assert record is not None
    assert (record.number, record.what) == (1, "gather")
    assert record.site.endswith("train.py:3")
