"""Who writes a record, and who only asks."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accel_track.local.record import RunRecord
from accel_track.local.record_lock import is_locked, lock, unlock

HOLDER = """
import sys
from pathlib import Path
from accel_track.local.record import RunRecord
record = RunRecord(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A record that another process writes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield tmp_path
    process.kill()
    process.communicate()


def test_to_ask_needs_no_right_to_write(held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S134: a run of another user that goes on is shown as such."""
    opened: list[int] = []
    open_ = lock.__globals__["os"].open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(flags)
        return int(open_(path, flags, mode))

    monkeypatch.setattr("accel_track.local.record_lock.os.open", read_only)
    assert is_locked(held)
    assert opened == [0]


def test_to_ask_takes_nothing_from_a_writer(tmp_path: Path) -> None:
    """S134: of this process, whose lock goes with any of its descriptors, or of another that begins meanwhile."""
    descriptor = lock(tmp_path)
    assert is_locked(tmp_path)
    refused = subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)], capture_output=True, text=True)
    assert "another process writes the record" in refused.stderr
    unlock(tmp_path, descriptor)
    assert not is_locked(tmp_path)


def test_one_process_does_not_write_a_record_twice(tmp_path: Path) -> None:
    """S135."""
    record = RunRecord(tmp_path)
    with pytest.raises(OSError, match="another tracker of this process writes the record"):
        RunRecord(tmp_path / "." / "")
    record.log({"loss": 1.0}, 0)
    record.close()
    RunRecord(tmp_path).close()


@pytest.mark.parametrize("name", ["metrics.jsonl", "media.jsonl"])
def test_a_record_that_cannot_be_opened_stays_free(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is no damaged file if this process has too many files open."""
    open_ = os.open

    def short_of_files(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == name:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", short_of_files)
        with pytest.raises(OSError, match="Too many"):
            RunRecord(tmp_path)
    assert not is_locked(tmp_path)
    RunRecord(tmp_path).close()


def test_a_record_is_closed_once(tmp_path: Path) -> None:
    """A second close closes no file that was opened meanwhile."""
    record = RunRecord(tmp_path)
    record.close()
    other = (tmp_path / "other").open("w")
    record.close()
    other.write("kept")
    other.close()
