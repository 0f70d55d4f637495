"""What processes print, as it arrives at whoever started the job."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from accel_launch.supervise.output import OUT, Output
from accel_testing import stretched

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

LAUNCH = (sys.executable, "-m", "accel_launch", "launch", "-n", "2", "--cpu")
RANK = "import os, sys, time\nrank = os.environ['RANK']\n"
BOTH = RANK + "print('out of', rank, flush=True)\nprint('err of', rank, file=sys.stderr)\n"


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


def write(folder: Path, script: str) -> str:
    (folder / "speaks.py").write_text(script)
    return "speaks.py"


def kept(folder: Path) -> dict[str, str]:
    """What was kept, by attempt and file."""
    return {str(file.relative_to(file.parents[1])): file.read_text() for file in folder.glob("*/attempt-*/*")}


def in_a_terminal(folder: Path, environ: Mapping[str, str], script: str, *options: str, rows: int = 24) -> str:
    """The errors of a launcher whose errors are a terminal of 77 columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 77, 0, 0))
    command = [*LAUNCH, *options, write(folder, script)]
    with subprocess.Popen(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stderr=theirs) as launcher:
        os.close(theirs)
        found = b""
        try:
            while chunk := os.read(ours, 1 << 16):
                found += chunk
        except OSError:  # everybody has left the terminal
            pass
        assert launcher.wait(timeout=stretched(60)) == 0
    os.close(ours)
    return found.decode()


def test_many_lines_arrive_complete_and_in_the_order_of_each_rank(accel: Run, tmp_path: Path) -> None:
    script = RANK + "for n in range(100_000):\n    sys.stderr.write(f'{rank} {n} {\"x\" * (n % 50)}\\n')\n"
    done = accel("launch", "-n", "2", write(tmp_path, script))
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    for rank in "01":
        assert [line for line in lines if line[:1] == rank] == [f"{rank} {n} {'x' * (n % 50)}" for n in range(100_000)]
    assert len(lines) == 200_000


def test_lines_that_are_written_in_pieces_are_not_mixed(accel: Run, tmp_path: Path) -> None:
    """Both are shown in one place at the same time, and write a few letters at a time."""
    script = (
        RANK + "for n in range(2000):\n    for part in ('a' * 9, rank * 9, 'z\\n'):\n        os.write(2, part.encode())"
    )
    done = accel("launch", "-n", "2", "--log_dir", "logs", write(tmp_path, script))
    assert sorted(done.stderr.splitlines()) == ["a" * 9 + "0" * 9 + "z"] * 2000 + ["a" * 9 + "1" * 9 + "z"] * 2000


@pytest.mark.parametrize("text", ["no end yet", "\\r 50 %", "first\\nsecond"])
def test_a_line_without_an_end_is_shown_while_its_process_goes_on(start: Start, tmp_path: Path, text: str) -> None:
    script = RANK + f"if rank == '1':\n    os.write(2, '{text}'.encode())\nfor _ in range(2000):\n"
    expected = text.encode().decode("unicode_escape")
    script += "    if not os.path.exists('read'): time.sleep(0.01)\n"
    with start("launch", "-n", "2", write(tmp_path, script)) as launcher:
        assert launcher.stderr is not None
        found = b""
        while len(found) < len(expected):
            found += os.read(launcher.stderr.fileno(), 100)
        (tmp_path / "read").touch()
        launcher.communicate(timeout=stretched(60))
    assert found == expected.encode()
    assert launcher.returncode == 0


def test_bytes_that_are_no_text_arrive_as_they_are(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    script = (
        RANK
        + "if rank == '0':\n    os.write(2, bytes(range(256)) * 1000)\n    os.write(2, b'\\xff')\n    sys.exit(3)\n"
    )
    done = subprocess.run([*LAUNCH, write(tmp_path, script)], cwd=tmp_path, env=silent_environ, capture_output=True)
    assert done.stderr.startswith(bytes(range(256)) * 1000 + b"\xff\naccel: rank 0 of 2")
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("tee", "out", "err"),
    [("0", "", ""), ("1", "out", ""), ("2", "", "err"), ("3", "out", "err")],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_shown_can_be_chosen(accel: Run, tmp_path: Path, count: int, tee: str, out: str, err: str) -> None:
    script = BOTH.replace("os.environ['RANK']", "os.environ.get('RANK', '0')")
    done = accel("launch", "-n", str(count), "--cpu", "--tee", tee, "--log_dir", "logs", write(tmp_path, script))
    ranks = range(count)
    assert sorted(done.stdout.splitlines()) == [f"out of {rank}" for rank in ranks if out]
    assert sorted(done.stderr.splitlines()) == [f"err of {rank}" for rank in ranks if err]
    everything = {f"attempt-0/rank-{rank}.{kind}": f"{kind} of {rank}\n" for rank in ranks for kind in ("out", "err")}
    assert kept(tmp_path / "logs") == everything


def test_what_would_be_shown_nowhere_has_to_be_kept(accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "-n", "2", "--tee", "2", write(tmp_path, BOTH))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--tee 2 leaves out what is then nowhere: name a folder for it, --log_dir FOLDER" in done.stderr


def test_each_attempt_is_kept_and_the_place_is_said(accel: Run, tmp_path: Path) -> None:
    script = BOTH + "sys.exit(3 if rank == '1' else 0)"
    done = accel("launch", "-n", "2", "--log_dir", "logs/below", "--max_restarts", "1", write(tmp_path, script))
    assert done.returncode == 3
    assert len(kept(tmp_path / "logs" / "below")) == 8
    places = re.findall(r"what each rank has printed: (.+)", done.stderr)
    assert [Path(place).name for place in places] == ["attempt-0", "attempt-1"]
    assert (Path(places[1]) / "rank-1.err").read_text() == "err of 1\n"


def test_two_jobs_share_a_folder(accel: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert accel("launch", "-n", "2", "--log_dir", "logs", write(tmp_path, BOTH)).returncode == 0
    assert len(list((tmp_path / "logs").iterdir())) == 2


@pytest.mark.parametrize("folder", ["file/below", "/proc/accel"])
def test_a_folder_that_cannot_be_made_is_refused_and_nothing_starts(accel: Run, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    done = accel("launch", "-n", "2", "--log_dir", folder, write(tmp_path, "open('started', 'w')"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"accel: error: log_dir {tmp_path / folder}: ")
    done = accel("launch", "-n", "2", "--log_dir", "file", write(tmp_path, "open('started', 'w')"))
    assert (done.returncode, done.stderr) == (2, "accel: error: --log_dir: Directory 'file' is a file.\n")
    assert not (tmp_path / "started").exists()


def test_a_file_that_cannot_grow_is_said_once_and_the_job_goes_on(
    tmp_path: Path, silent_environ: Mapping[str, str]
) -> None:
    """RLIMIT_FSIZE, which counts for files and not for pipes: a full disk looks the same."""
    script = RANK + "for n in range(3000):\n    print('line', n, file=sys.stderr)\nprint('to its end')"
    command = f"ulimit -f 4; exec {' '.join(LAUNCH)} --log_dir logs {write(tmp_path, script)}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=silent_environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "to its end\n" * 2)
    said = [line for line in done.stderr.splitlines() if not line.startswith("line ")]
    assert [
        bool(re.fullmatch(r"accel: .+/rank-\d.err is not written any more: .*File too large", x)) for x in said
    ] == [
        True,
        True,
    ]
    assert len(done.stderr.splitlines()) == 6002


@pytest.mark.parametrize(("limit", "option"), [(20, "--log_dir logs"), (8, ""), (7, "")])
def test_too_few_open_files_are_words(
    tmp_path: Path, silent_environ: Mapping[str, str], limit: int, option: str
) -> None:
    """With one limit it is the files of a process that cannot be opened, with the other one its start."""
    script = write(tmp_path, BOTH)
    command = f"ulimit -n {limit}; exec {' '.join(LAUNCH)} -n 16 {option} {script}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=silent_environ, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_stays_behind_with_the_errors_open_holds_nobody(accel: Run, tmp_path: Path) -> None:
    script = RANK + "import subprocess\nif rank == '0':\n    print(subprocess.Popen(['sleep', '600']).pid)\n"
    done = accel("launch", "-n", "2", "--log_dir", "logs", write(tmp_path, script + "print('bye', file=sys.stderr)\n"))
    os.kill(int(done.stdout), signal.SIGKILL)
    assert (done.returncode, done.stderr) == (0, "bye\nbye\n")


def test_a_process_that_stays_behind_and_goes_on_to_print_holds_nobody(accel: Run, tmp_path: Path) -> None:
    behind = "['sh', '-c', 'while echo on >&2; do sleep 0.01; done']"
    script = f"{RANK}import subprocess\nif rank == '0':\n    subprocess.Popen({behind})\n"
    done = accel("launch", "-n", "2", "--log_dir", "logs", write(tmp_path, script + "print('bye', file=sys.stderr)\n"))
    assert (done.returncode, done.stderr.replace("on\n", "")) == (0, "bye\nbye\n")


@pytest.mark.parametrize("code", [0, 3])
def test_a_reader_that_goes_away_changes_no_exit_code(
    tmp_path: Path, silent_environ: Mapping[str, str], code: int
) -> None:
    """As in `accel launch --log_dir logs ... 2>&1 | head -1`; without a folder it is as without the launcher."""
    script = RANK + "for n in range(3000):\n    print('line', n, file=sys.stderr)\n"
    command = [*LAUNCH, "--log_dir", "logs", write(tmp_path, f"{script}sys.exit({code})")]
    with subprocess.Popen(command, cwd=tmp_path, env=silent_environ, stderr=subprocess.PIPE) as launcher:
        assert launcher.stderr is not None
        assert launcher.stderr.read(5) == b"line "
        launcher.stderr.close()
        assert launcher.wait(timeout=stretched(60)) == code


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_launcher_without_standard_streams_starts_the_same(
    tmp_path: Path, silent_environ: Mapping[str, str], closed: str
) -> None:
    script = RANK + (
        "import socket\n"
        "if rank == '0':\n"
        "    assert int(os.environ['ACCEL_STORE_FD']) > 2\n"
        "    s = socket.socket(fileno=int(os.environ['ACCEL_STORE_FD']))\n"
        "    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)\n"
        "    assert sys.stdin is None or sys.stdin.read() == ''\n"
        "print('nobody hears it', file=sys.stderr)\n"
        "open('done-' + rank, 'w')\n"
    )
    command = f"exec {' '.join(LAUNCH)} {write(tmp_path, script)} {closed}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=silent_environ, capture_output=True, text=True, timeout=stretched(30)
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("done-*"))) == 2


SIZE = RANK + "print(os.isatty(1), os.isatty(2), os.get_terminal_size(2) if os.isatty(2) else None, file=sys.stderr)"


def test_processes_have_a_terminal_where_the_launcher_has_one(
    tmp_path: Path, silent_environ: Mapping[str, str]
) -> None:
    found = in_a_terminal(tmp_path, silent_environ, SIZE, rows=33)
    assert [line.split(" ", 1)[1] for line in found.splitlines()] == ["True os.terminal_size(columns=77, lines=33)"] * 2
    assert found.count("\r\n") == 2, "a line ends once"


def test_processes_have_no_terminal_where_the_launcher_has_none(accel: Run, tmp_path: Path) -> None:
    done = accel("launch", "-n", "2", write(tmp_path, SIZE))
    assert done.stderr == "False False None\n" * 2


def test_progress_bars_reach_a_terminal_as_they_are(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    script = (
        RANK
        + "for n in range(5 if rank == '0' else 0):\n    os.write(2, f'\\r{n} of 5'.encode())\n    time.sleep(0.02)\n"
    )
    assert in_a_terminal(tmp_path, silent_environ, script) == "".join(f"\r{n} of 5" for n in range(5))


def test_a_terminal_and_a_folder_get_the_same(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    text = in_a_terminal(tmp_path, silent_environ, BOTH, "--log_dir", "logs")
    assert sorted(text.split("\r\n")) == ["", "err of 0", "err of 1"]
    assert kept(tmp_path / "logs")["attempt-0/rank-1.err"] == "err of 1\n"


def test_a_traceback_that_is_not_shown_is_the_last_word(accel: Run, tmp_path: Path) -> None:
    """Nothing of it is above; and what no exception tells is in the folder."""
    for script, words in (
        ("raise ValueError('no')", "\nValueError: no\n\naccel: rank "),
        ("sys.exit(3)", "tells why\n"),
    ):
        done = accel("launch", "-n", "2", "--tee", "0", "--log_dir", "logs", write(tmp_path, RANK + script))
        assert words in done.stderr
        assert "above" not in done.stderr


@pytest.mark.parametrize("act", ["raise ValueError('the cause')", "time.sleep(60)"])
def test_a_terminal_that_is_read_slowly_loses_nothing_and_stops_nobody(
    tmp_path: Path, silent_environ: Mapping[str, str], act: str
) -> None:
    script = RANK + f"for n in range(500): os.write(2, b'%d %03d %s\\n' % (int(rank), n, b'-' * 90))\n{act}\n"
    ours, theirs = os.openpty()
    command = [*LAUNCH, write(tmp_path, script)]
    with subprocess.Popen(command, cwd=tmp_path, env=silent_environ, stdin=subprocess.DEVNULL, stderr=theirs) as job:
        os.close(theirs)
        if act.startswith("time"):
            time.sleep(1.5)
            job.terminate()
            assert job.wait(timeout=stretched(60)) == 128 + signal.SIGTERM, "though nobody reads what it has printed"
            return
        found = b""
        try:
            while chunk := os.read(ours, 2048):
                found += chunk
                time.sleep(0.05)
        except OSError:  # everybody has left the terminal
            pass
        assert job.wait(timeout=stretched(60)) == 1
    os.close(ours)
    lines = found.decode().splitlines()
    shown = [[line[2:5] for line in lines if re.match(rf"{rank} \d\d\d -", line)] for rank in "01"]
    assert [f"{n:03}" for n in range(500)] in shown, "that which has failed first has printed all"
    assert found.count(b"ValueError: the cause") >= 2


def test_nothing_stays_open(tmp_path: Path) -> None:
    before, threads = os.listdir("/proc/self/fd"), threading.active_count()
    for _ in range(3):
        with Output(tmp_path, frozenset({OUT})) as output:
            output.of(0)
            output.started()
            assert output.finish(60)
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == (before, threads)
