"""How a launch ends when somebody ends it in the middle of a failure, kills it, or signals its process group."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from accel_testing import stretched
from suite.soak import in_soak

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

LAUNCH = (sys.executable, "-m", "accel_launch", "launch", "--cpu", "-n", "2")
RANK = "import os, signal, sys, time\nrank = os.environ['RANK']\n"
HERE = "open(f'here-{rank}', 'w').close()\n"
BOTH = "while not (os.path.exists('here-0') and os.path.exists('here-1')): time.sleep(0.01)\n"
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="what a process leaves is known on Linux only")


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


def written(folder: Path, script: str) -> str:
    (folder / "ends.py").write_text(script)
    return "ends.py"


def wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    until = time.monotonic() + stretched(timeout_s)
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def here(folder: Path) -> bool:
    return all((folder / f"here-{rank}").exists() for rank in "01")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_job_that_somebody_ends_after_a_failure_is_not_started_again(start: Start, tmp_path: Path) -> None:
    """Rank 0 has failed, and rank 1 takes its time: SIGTERM to the launcher is the user's word on the job."""
    stays = "signal.signal(signal.SIGTERM, lambda *a: open('told', 'w').close())\n"
    script = RANK + stays + HERE + BOTH + "sys.exit(3) if rank == '0' else None\nfor _ in range(6000): time.sleep(0.01)"
    with start("launch", "-n", "2", "--max_restarts", "3", written(tmp_path, script)) as launcher:
        wait_for((tmp_path / "told").exists)
        launcher.terminate()
        _, said = launcher.communicate(timeout=stretched(60))
    assert launcher.returncode == 3
    assert "accel: rank 0 of 2" in said
    assert "starts again" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_reaches_each_process_once(
    tmp_path: Path, silent_environ: Mapping[str, str], number: signal.Signals
) -> None:
    """As coreutils timeout and CI systems send it; a second one would cut short what the first one has begun."""
    notes = "told = []\nsignal.signal(signal.SIGINT, lambda n, f: told.append(n))\n"
    notes += "signal.signal(signal.SIGTERM, lambda n, f: told.append(n))\n"
    script = RANK + notes + HERE + "while not told: time.sleep(0.01)\ntime.sleep(0.7)\nprint('told', *map(int, told))"
    with subprocess.Popen(
        [*LAUNCH, written(tmp_path, script)],
        cwd=tmp_path,
        env=silent_environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        wait_for(lambda: here(tmp_path))
        os.killpg(launcher.pid, number)
        out, _ = launcher.communicate(timeout=stretched(60))
    assert out.split("\n") == [f"told {int(number)}"] * 2 + [""]


@needs_linux
def test_a_job_goes_on_after_a_pause(start: Start, tmp_path: Path) -> None:
    """Ctrl-Z and fg, or a queue that suspends: the launcher is stopped for longer than it waits at a time."""
    script = RANK + HERE + "while not os.path.exists('on'): time.sleep(0.01)"
    with start("launch", "-n", "2", written(tmp_path, script)) as launcher:
        wait_for(lambda: here(tmp_path))
        for _ in range(3):
            launcher.send_signal(signal.SIGSTOP)
            time.sleep(1.3)
            launcher.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        (tmp_path / "on").touch()
        _, said = launcher.communicate(timeout=stretched(60))
    assert (launcher.returncode, said) == (0, "")


def test_errors_that_nobody_reads_hold_no_launcher_that_is_told_to_end(start: Start, tmp_path: Path) -> None:
    """Though all processes end well: no failure has the launcher read on."""
    floods = "signal.signal(signal.SIGTERM, lambda *a: os._exit(0))\n"
    floods += "if rank == '0':\n    while True: os.write(2, b'y' * 1000 + b'\\n')\n"
    with start("launch", "-n", "2", written(tmp_path, RANK + floods + HERE + "time.sleep(600)")) as launcher:
        wait_for((tmp_path / "here-1").exists)
        time.sleep(0.7)
        launcher.terminate()
        launcher.wait(stretched(60))
        launcher.communicate()


@needs_linux
def test_a_killed_launcher_leaves_nothing_of_a_launch_within_its_job(start: Start, tmp_path: Path) -> None:
    inner = tmp_path / "inner.sh"
    inner.write_text("#!/bin/sh\nsetsid sleep 640 &\necho $! > inner-$RANK\nsleep 640\n")
    inner.chmod(0o755)
    outer = (
        RANK + "import subprocess\nif rank == '0':\n"
        "    clean = {k: v for k, v in os.environ.items() if k not in ('RANK', 'WORLD_SIZE')}\n"
        f"    subprocess.Popen({[*LAUNCH, '--no_python', './inner.sh']!r}, env=clean, start_new_session=True)\n"
        "time.sleep(650)\n"
    )
    with start("launch", "-n", "2", written(tmp_path, outer)) as launcher:
        found = [tmp_path / f"inner-{rank}" for rank in "01"]
        wait_for(lambda: all(path.exists() and path.read_text().endswith("\n") for path in found))
        left = [int(path.read_text()) for path in found]
        launcher.kill()
        launcher.wait(stretched(60))
        wait_for(lambda: not any(map(running, left)))


@needs_linux
def test_a_killed_launcher_leaves_nothing_of_a_wrapper_in_shell(start: Start, tmp_path: Path) -> None:
    """The tie between a launcher and its processes does not hold those that these start."""
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text("#!/bin/sh\nsetsid sleep 610 &\necho $! > pid-$RANK\nsleep 620\necho after\n")
    wrapper.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with start("launch", "-n", "2", "--no_python", "./wrapper.sh", environ={"TMPDIR": str(scratch)}) as launcher:
        found = [tmp_path / f"pid-{rank}" for rank in "01"]
        wait_for(lambda: all(path.exists() and path.read_text().endswith("\n") for path in found))
        left = [int(path.read_text()) for path in found]
        assert all(map(running, left))
        assert list(scratch.glob("accel-*"))
        launcher.kill()
        launcher.wait(stretched(60))
        wait_for(lambda: not any(map(running, left)))
    wait_for(lambda: not list(scratch.glob("accel-*")))


@needs_linux
@pytest.mark.parametrize("number", [signal.SIGTERM, *in_soak(signal.SIGINT)])
def test_a_signal_to_the_launcher_leaves_nothing_of_a_wrapper(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """Neither what has the environment of the job nor what has none, as a program that was started by `env -i`."""
    wrapper = tmp_path / "wrapper.sh"
    lines = ["#!/bin/sh", "setsid sleep 610 &", "first=$!", "env -i setsid sleep 611 &", "echo $first $! > pid-$RANK"]
    wrapper.write_text("\n".join([*lines, "sleep 620", ""]))
    wrapper.chmod(0o755)
    with start("launch", "-n", "2", "--no_python", "./wrapper.sh") as launcher:
        found = [tmp_path / f"pid-{rank}" for rank in "01"]
        wait_for(lambda: all(path.exists() and path.read_text().endswith("\n") for path in found))
        left = [int(pid) for path in found for pid in path.read_text().split()]
        assert all(map(running, left))
        launcher.send_signal(number)
        launcher.communicate(timeout=stretched(60))
        assert launcher.returncode == 128 + number
        wait_for(lambda: not any(map(running, left)))


@needs_linux
def test_a_good_end_ends_nothing_that_a_script_leaves_on_purpose(accel: Run, tmp_path: Path) -> None:
    script = (
        RANK
        + "import subprocess\nchild = subprocess.Popen(['sleep', '63'], start_new_session=True, stdout=-3, stderr=-3)\n"
    )
    script += "open(f'pid-{rank}', 'w').write(str(child.pid))"
    assert accel("launch", "-n", "2", written(tmp_path, script)).returncode == 0
    left = [int((tmp_path / f"pid-{rank}").read_text()) for rank in "01"]
    try:
        assert all(map(running, left))
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


@needs_linux
def test_what_ends_behind_a_process_does_not_stay_as_a_zombie(accel: Run, tmp_path: Path) -> None:
    script = RANK + "for _ in range(30): os.system('true &')\n"
    script += "for _ in range(500):\n"
    script += "    found = [p for p in os.popen(f'ps -o stat= --ppid {os.getppid()}').read().split() if p[0] == 'Z']\n"
    script += "    if not found: sys.exit(0)\n"
    script += "    time.sleep(0.01)\nsys.exit(len(found))"
    assert accel("launch", "-n", "2", written(tmp_path, script)).returncode == 0


@needs_linux
def test_a_limit_of_a_thousand_million_open_files_costs_nothing(silent_environ: Mapping[str, str]) -> None:
    """Where Python closes files one by one, as many as there may be takes minutes."""
    code = (
        "import os, tempfile\nfrom pathlib import Path\n"
        "from accel_launch.supervise.orphan_killer import orphan_killer\n"
        "def closerange(first, last):\n    for number in range(first, last): pass\n"
        "os.closerange, os.sysconf = closerange, lambda name: 10**9\n"
        "with orphan_killer(Path(tempfile.mkdtemp())): pass\nprint('over')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=silent_environ, timeout=stretched(20)
    )
    assert done.stdout == "over\n", done.stderr


@needs_linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of processes")
def test_as_process_1_of_a_container_only_what_is_of_the_job_is_ended(silent_environ: Mapping[str, str]) -> None:
    """Others are its children too: what `docker exec` has started, for one."""
    code = (
        "import os, subprocess, time\nfrom pathlib import Path\n"
        "from accel_launch.supervise.process_tree import end_job\n"
        "began, quiet = time.time(), {'stdout': -3, 'stderr': -3}\n"
        "other = subprocess.Popen(['sleep', '60'], **quiet)\n"
        "own = subprocess.Popen(['sleep', '60'], env={**os.environ, 'ACCEL_JOBS': '/outer:/job'}, **quiet)\n"
        "time.sleep(0.3)\nend_job(Path('/job'), began)\n"
        "print(os.getpid(), os.path.exists(f'/proc/{own.pid}'), other.poll())"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=silent_environ, timeout=stretched(60))
    assert done.stdout == "1 False None\n", done.stdout + done.stderr


@needs_linux
def test_reaping_leaves_the_ends_of_ones_own_processes_alone(silent_environ: Mapping[str, str]) -> None:
    code = (
        "import os, subprocess, sys, time\nfrom accel_launch.supervise.process_tree import reap\n"
        "other, own = subprocess.Popen(['true']), subprocess.Popen(['false'])\n"
        "time.sleep(0.5)\nreap([own.pid])\nprint(os.path.exists(f'/proc/{other.pid}'), own.wait())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=silent_environ)
    assert done.stdout.split() == ["False", "1"], done.stderr


def test_those_that_had_ended_well_are_named(accel: Run, tmp_path: Path) -> None:
    script = RANK + "if rank == '1': sys.exit(0)\ntime.sleep(1)\nraise RuntimeError('PeerLost: it is gone')"
    said = accel("launch", "-n", "2", written(tmp_path, script)).stderr
    assert "\n  had ended before, with exit code 0: rank 1\n" in said


def test_a_process_that_another_launcher_numbers_keeps_its_number(accel: Run, tmp_path: Path) -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "4"}
    done = accel("launch", "--max_restarts", "1", written(tmp_path, "raise SystemExit(5)"), environ=environ)
    assert done.returncode == 5
    assert "accel: rank 3 of 4 " in done.stderr


@pytest.mark.parametrize("handler", ["1", ""])
def test_a_rank_that_nccl_aborts_is_not_blamed_for_what_it_prints(accel: Run, tmp_path: Path, handler: str) -> None:
    nccl = "NCCL error: remote process exited or there was a network error"
    script = (
        RANK + "import threading\nif rank == '1':\n"
        "    for _ in range(8): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        f"    os.write(2, {shlex.quote(nccl)}.encode() + b'\\n')\n    os.abort()\n"
        "time.sleep(0.5)\nraise ValueError('the real cause')"
    )
    done = accel("launch", "-n", "2", written(tmp_path, script), environ={"PYTHONFAULTHANDLER": handler})
    assert done.returncode == 1, done.stderr
    assert "accel: rank 0 of 2" in done.stderr
