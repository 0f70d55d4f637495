"""Real processes that fail, are killed, or are asked to end. The scripts do not import torch."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_launch.job.plan import ProcessSpec
from accel_launch.report.failure_report import explain
from accel_launch.report.job_result import JobResult, ProcessExit
from accel_launch.supervise.signals import HandledSignals, SignalSource, command_line_signals
from accel_launch.supervise.supervisor import Supervisor
from accel_state.errors import CannotRun
from accel_testing import stretched

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Every rank writes its process id; then rank 1 does what is asked, and rank 0 waits to be ended.
SCRIPT = """\
import os, signal, sys, time
rank = os.environ["RANK"]
with open(f"pid-{rank}.partial", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{rank}.partial", f"pid-{rank}")
if sys.argv[1:] and rank == "1":
    while not os.path.exists("pid-0"):
        time.sleep(0.005)
    exec(sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "work.py").write_text(SCRIPT)
    return "work.py"


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> bool:
    until_s = time.monotonic() + stretched(timeout_s)
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def pids(folder: Path, count: int = 2) -> list[int]:
    files = [folder / f"pid-{rank}" for rank in range(count)]
    assert wait_for(lambda: all(file.exists() for file in files))
    return [int(file.read_text()) for file in files]


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    ("act", "code", "how"),
    [
        ("sys.exit(7)", 7, "failed with exit code 7\n  it left no traceback; if it printed a message, that is above"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL\n  often out of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV\n  Fatal Python error: Seg"),
    ],
)
def test_the_first_failure_ends_the_others_and_is_the_last_word(
    accel: Run, script: str, tmp_path: Path, act: str, code: int, how: str
) -> None:
    done = accel("launch", "-n", "2", script, act)
    assert done.returncode == code
    zero, one = pids(tmp_path)
    assert not alive(zero)
    block = f"accel: rank 1 of 2 (pid {one}) {how}"
    assert block in done.stderr
    last = done.stderr[done.stderr.index(block) :].splitlines()
    assert last[-1] == "  ended because of it: rank 0"
    assert last[-2].startswith("  command: ")


def test_a_traceback_stays_above_the_last_word(accel: Run, script: str) -> None:
    done = accel("launch", "-n", "2", script, "raise ValueError('no such thing')")
    assert done.returncode == 1
    assert done.stderr.index("ValueError: no such thing") < done.stderr.index("accel: rank 1 of 2")
    assert "Traceback" not in done.stderr[done.stderr.index("accel: rank 1 of 2") :]


def test_a_process_that_ignores_sigterm_is_killed_after_a_short_time(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "rank = os.environ['RANK']\n"
        "open('ready-' + rank, 'w').close()\n"
        "while not os.path.exists('ready-0'): time.sleep(0.01)\n"
        "sys.exit(4) if rank == '1' else time.sleep(600)\n"
    )
    assert accel("launch", "-n", "2", "deaf.py").returncode == 4


def test_a_process_that_is_done_does_not_end_the_others(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(
        "import os, time\n"
        "rank = os.environ['RANK']\n"
        "while rank == '1' and not os.path.exists('done-0'): time.sleep(0.01)\n"
        "print(rank, flush=True); open('done-' + rank, 'w').close()\n"
    )
    done = accel("launch", "-n", "2", "uneven.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n1\n", "")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)]
)
def test_a_signal_to_the_launcher_reaches_every_process(
    start: Start, script: str, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with start("launch", "-n", "2", script) as launcher:
        children = pids(tmp_path)
        launcher.send_signal(number)
        _, err = launcher.communicate(timeout=stretched(60))
    assert launcher.returncode == code
    assert not any(alive(pid) for pid in children)
    expected = "accel: rank" if number == signal.SIGUSR1 else f"accel: the job of 2 was ended by {number.name}"
    assert err.splitlines()[-1].startswith(expected) or expected in err


def test_processes_that_save_on_sigterm_have_the_time_to(start: Start, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(
        "import os, signal, sys, time\n"
        "def save(number, frame):\n"
        "    time.sleep(0.5)\n"
        "    open('saved-' + os.environ['RANK'], 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "with open('partial-' + os.environ['RANK'], 'w') as file: file.write('1')\n"
        "os.rename('partial-' + os.environ['RANK'], 'pid-' + os.environ['RANK'])\n"
        "time.sleep(60)\n"
    )
    with start("launch", "-n", "2", "save.py") as launcher:
        pids(tmp_path)
        launcher.terminate()
        time.sleep(0.2)
        launcher.terminate()
        launcher.communicate(timeout=stretched(60))
    assert launcher.returncode == 0
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_killed_launcher_leaves_no_orphan(start: Start, script: str, tmp_path: Path) -> None:
    with start("launch", "-n", "2", script) as launcher:
        children = pids(tmp_path)
        launcher.kill()
        launcher.wait()
        assert wait_for(lambda: not any(alive(pid) for pid in children))


def test_one_process_takes_the_place_of_the_launcher(start: Start, tmp_path: Path) -> None:
    (tmp_path / "pid.py").write_text("import os; print(os.getpid())")
    with start("launch", "-n", "1", "pid.py") as launcher:
        out, _ = launcher.communicate(timeout=stretched(60))
    assert int(out) == launcher.pid


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_ports_are_on_loopback_and_only_rank_0_has_the_socket(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "ports.py").write_text(
        "import os, socket\n"
        "if os.environ['RANK'] == '0':\n"
        "    s = socket.socket(fileno=int(os.environ['ACCEL_STORE_FD']))\n"
        "    assert s.getsockname() == ('127.0.0.1', int(os.environ['ACCEL_STORE_PORT']))\n"
        "    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)\n"
        "    s.accept()[0].sendall(b'hello')\n"
        "    m = socket.socket(); m.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "    m.bind(('127.0.0.1', int(os.environ['MASTER_PORT']))); m.listen()\n"
        "else:\n"
        "    assert 'ACCEL_STORE_FD' not in os.environ\n"
        "    assert not any('socket' in os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')\n"
        "                   if os.path.islink(f'/proc/self/fd/{n}'))\n"
        "    c = socket.create_connection(('127.0.0.1', int(os.environ['ACCEL_STORE_PORT'])), 10)\n"
        "    assert c.recv(5) == b'hello'\n"
    )
    done = accel("launch", "-n", "2", "ports.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_eight_launches_at_once_do_not_meet_each_other(start: Start, tmp_path: Path) -> None:
    """T18."""
    (tmp_path / "port.py").write_text("import os; print(os.environ['ACCEL_STORE_PORT'], os.environ['MASTER_PORT'])")
    launchers = [start("launch", "-n", "2", "port.py") for _ in range(8)]
    said = [launcher.communicate(timeout=stretched(60)) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0] * 8, said
    assert all(len(set(out.splitlines())) == 1 for out, _ in said), said


def python(code: str, rank: int = 0) -> ProcessSpec:
    return ProcessSpec((sys.executable, "-c", code), os.environ, rank=rank)


def python_signals() -> SignalSource:
    return HandledSignals(())


@pytest.fixture(params=[command_line_signals, HandledSignals, python_signals])
def source(request: pytest.FixtureRequest) -> SignalSource:
    made: SignalSource = request.param()
    return made


def test_every_source_sees_children_end(source: SignalSource) -> None:
    assert Supervisor([python("pass"), python("pass", 1)], source).run() == JobResult(2)


def test_every_source_sees_failures(source: SignalSource) -> None:
    specs = [python("import time; time.sleep(60)"), python("raise SystemExit(5)", 1)]
    result = Supervisor(specs, source, bound=True).run()
    assert (result.code, result.stopped) == (5, (0,))


def test_signal_handlers_are_put_back(source: SignalSource) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    Supervisor([python("pass")], source).run()
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    assert mask == signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_signals_that_were_ignored_at_the_start_stay_ignored(source: SignalSource) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with source:
            for number in before:
                assert signal.getsignal(number) is signal.SIG_IGN
                assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
                os.kill(os.getpid(), number)
            assert source.wait(0) is None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_without_sigtimedwait_a_signal_is_passed_on_too(tmp_path: Path) -> None:
    """As on systems other than Linux: each process saves, and the job is told as ended from outside."""
    (tmp_path / "launch.py").write_text(
        "import os, sys\nfrom accel_launch.job.plan import ProcessSpec\n"
        "from accel_launch.report.failure_report import explain\n"
        "from accel_launch.supervise.signals import HandledSignals\n"
        "from accel_launch.supervise.supervisor import Supervisor\n"
        "specs = [ProcessSpec((sys.executable, 'work.py', str(r)), os.environ, rank=r) for r in (0, 1)]\n"
        "result = Supervisor(specs, HandledSignals()).run()\nprint(explain(result))\nsys.exit(result.code)\n"
    )
    (tmp_path / "work.py").write_text(
        "import os, signal, sys, time\nrank = sys.argv[1]\n"
        "def save(*about):\n    open(f'saved-{rank}', 'w').close()\n    os._exit(3)\n"
        "signal.signal(signal.SIGTERM, save)\nopen(f'pid-{rank}', 'w').write('0')\ntime.sleep(600)\n"
    )
    command = [sys.executable, "launch.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as launcher:
        assert wait_for(lambda: all((tmp_path / f"pid-{rank}").exists() for rank in (0, 1)))
        launcher.send_signal(signal.SIGTERM)
        out, _ = launcher.communicate(timeout=stretched(60))
    assert launcher.returncode == 3, out
    assert out.startswith("accel: the job of 2 was ended by SIGTERM from outside\n")
    assert all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))


def test_a_process_that_cannot_start_ends_those_that_have(tmp_path: Path) -> None:
    started: list[int] = []
    specs = [python("import time; time.sleep(60)"), ProcessSpec((str(tmp_path / "missing"),), {}, rank=1)]
    with pytest.raises(CannotRun, match=r"start rank 1: .*missing"):
        Supervisor(specs, command_line_signals()).run(started.append)
    assert started == [0]


def test_a_good_end_needs_no_words() -> None:
    assert explain(JobResult(2)) is None


def test_a_job_that_was_ended_from_outside_is_told_in_one_line() -> None:
    ended = ProcessExit(rank=1, pid=9, status=-signal.SIGKILL, command=("x",))
    result = JobResult(2, first=ended, outside=signal.SIGTERM, killed=(1,), grace_s=30)
    assert result.code == 143
    assert explain(result) == (
        "accel: the job of 2 was ended by SIGTERM from outside\n"
        "  had not ended 30 s later, and had to be killed: rank 1"
    )
