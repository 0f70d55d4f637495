"""T13: two processes of which one fails in some way, as a user sees it."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

WAITS = "\nimport time; time.sleep(60)\n"
ONE = "import os, signal, sys, time\nif os.environ['RANK'] == '0':\n    time.sleep(60)\n"
# a failure: the script, the exit code, the line that is at fault, and what is said of it
FAILURES = {
    "ImportError": (ONE + "import no_such_module", 1, "seeded.py:4", "ModuleNotFoundError: No module named 'no_such_m"),
    "SyntaxError": ("x = 1\nif x ==:\n    pass", 1, "seeded.py:2", "SyntaxError: invalid syntax"),
    "SyntaxError in a module": (ONE + "import broken", 1, "broken.py:1", "SyntaxError: invalid syntax"),
    "exit(3)": (ONE + "sys.exit(3)", 3, "", "failed with exit code 3"),
    "raise": (ONE + "raise ValueError('no')", 1, "seeded.py:4", "ValueError: no"),
    "SIGKILL": (ONE + "os.kill(os.getpid(), signal.SIGKILL)", 137, "", "killed by SIGKILL\n  often out of memory"),
    "SIGSEGV": (ONE + "import ctypes\nctypes.string_at(0)", 139, "seeded.py:5", "error: Segmentation fault"),
    "SIGABRT": (ONE + "os.abort()", 134, "seeded.py:4", "Fatal Python error: Aborted"),
    "MemoryError": (ONE + "bytearray(1 << 60)", 1, "seeded.py:4", "MemoryError"),
    "chained": (
        ONE + "try:\n    {}['k']\nexcept KeyError as e:\n    raise RuntimeError('outer') from e",
        *(1, "seeded.py:7", "RuntimeError: outer"),
    ),
    "in a future": (
        ONE + "from concurrent.futures import ThreadPoolExecutor\ndef work():\n    raise LookupError('in a pool')\n"
        "with ThreadPoolExecutor(1) as pool:\n    pool.submit(work).result()",
        *(1, "seeded.py:6", "LookupError: in a pool"),
    ),
    "KeyboardInterrupt": (ONE + "raise KeyboardInterrupt('mine')", 130, "seeded.py:4", "KeyboardInterrupt: mine"),
    "ExceptionGroup": (
        ONE + "class Mute(Exception):\n    def __str__(self): raise OSError\n"
        "try:\n    int('x')\nexcept ValueError as e:\n    raise ExceptionGroup('several', [e, Mute()])",
        *(1, "seeded.py:7", "ExceptionGroup: several (2 sub-exceptions)\n    ValueError: invalid literal"),
    ),
}


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


def launched(
    accel: Run, folder: Path, script: str, *options: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    (folder / "seeded.py").write_text(script)
    (folder / "broken.py").write_text("def f(:\n    pass\n")
    return accel("launch", "-n", "2", "--cpu", *options, "seeded.py", environ=variables)


def last_block(err: str) -> str:
    return err[err.rindex("accel: rank ") :]


@pytest.mark.parametrize(("script", "code", "where", "words"), FAILURES.values(), ids=FAILURES)
def test_the_last_lines_say_what_failed_where_and_on_which_rank(
    accel: Run, tmp_path: Path, script: str, code: int, where: str, words: str
) -> None:
    done = launched(accel, tmp_path, script)
    end = "\n".join(done.stderr.splitlines()[-20:])
    assert done.returncode == code, done.stderr
    # a script that cannot be read fails on both, and either may be first
    assert re.search(f"accel: rank {'[01]' if script.startswith('x = 1') else 1} of 2 ", end)
    assert words in last_block(end)
    assert where in last_block(end)
    assert "/accel_launch/" not in done.stderr


@pytest.mark.parametrize("how", ["sys.exit(1)", "os.abort()", "os._exit(0)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_one_that_is_ended_and_then_fails_in_its_own_way_is_not_blamed(accel: Run, tmp_path: Path, how: str) -> None:
    done = launched(
        accel,
        tmp_path,
        "import os, signal, sys, time\n"
        "def last(*received):\n"
        "    sys.stderr.write('much to say\\n' * 40)\n"
        f"    {how}\n"
        "signal.signal(signal.SIGTERM, last)\n"
        "open('ready-' + os.environ['RANK'], 'w').close()\n"
        "while not os.path.exists('ready-0'):\n"
        "    time.sleep(0.01)\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('the real cause')\n" + WAITS,
    )
    assert done.returncode == 1
    block = last_block(done.stderr)
    assert block.startswith("accel: rank 1 of 2 ")
    assert block.splitlines()[-1] == "  ended because of it: rank 0"
    end = "\n".join(done.stderr.splitlines()[-20:])
    assert "\nTraceback (most recent call last):\n" in end, "its traceback comes again"
    assert end.count("ValueError: the real cause") == 2


def test_ranks_that_fail_by_themselves_at_once_are_not_said_to_be_ended(accel: Run, tmp_path: Path) -> None:
    both = (
        "import os, time\nmine, other = (f'ready-{rank}' for rank in sorted('01', key=os.environ['RANK'].__ne__))\n"
        "open(mine, 'w').close()\nwhile not os.path.exists(other): time.sleep(0.001)\nraise ValueError('both')\n"
    )
    done = launched(accel, tmp_path, both)
    block = last_block(done.stderr)
    other = "1" if block.startswith("accel: rank 0 of 2 ") else "0"
    assert block.splitlines()[-1] == f"  failed as well: rank {other}", done.stderr
    assert "ended because of it" not in block


def test_last_words_begin_on_a_line_of_their_own(accel: Run, tmp_path: Path) -> None:
    """A process was killed in the middle of the line of its progress bar."""
    done = launched(
        accel,
        tmp_path,
        ONE + "sys.stderr.write('\\r 50% |###   |')\nsys.stderr.flush()\nos.kill(os.getpid(), signal.SIGKILL)",
    )
    assert "50% |###   |\naccel: rank 1 of 2 " in done.stderr


@pytest.mark.parametrize("noise", ["", "print('much to say', file=sys.stderr)"])
def test_the_traceback_of_the_root_cause_is_last_on_the_screen(accel: Run, tmp_path: Path, noise: str) -> None:
    """T13: From its file, with what it was and what may help below; whatever others have printed since."""
    script = "import os, signal, sys, time\nif os.environ['RANK'] == '0':\n"
    script += f"    signal.signal(signal.SIGTERM, lambda *a: ({noise}, os._exit(4)))\n" if noise else ""
    script += (
        "    open('ready', 'w').close()\n    time.sleep(60)\nwhile not os.path.exists('ready'): time.sleep(0.01)\n"
    )
    done = launched(accel, tmp_path, script + "raise ValueError('no')")
    last = done.stderr[done.stderr.rindex("Traceback (most recent call last):") :]
    assert "much to say" not in last
    traceback, block = last.split("\n\n")
    assert traceback.endswith("    raise ValueError('no')\nValueError: no")
    assert re.fullmatch(
        r"accel: rank 1 of 2 \(pid \d+\) failed with exit code 1\n  ValueError: no\n"
        r"  at \S*seeded.py:[67] in <module>: raise ValueError\('no'\)\n"
        r"  its own message is above\n  command: .*\n  ended because of it: rank 0\n",
        block,
    )


def test_the_traceback_of_one_process_is_not_printed_twice(accel: Run, tmp_path: Path) -> None:
    """T13."""
    (tmp_path / "fails.py").write_text("raise ValueError('no')")
    done = accel("launch", "-n", "1", "--cpu", "--log_dir", "logs", "fails.py")
    assert done.stderr.count("Traceback") == 1
    assert "accel: rank 0 of 1 " in done.stderr


def test_an_exception_that_was_caught_is_not_why_a_process_was_killed(accel: Run, tmp_path: Path) -> None:
    caught = "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
    done = launched(accel, tmp_path, ONE + caught + "os.kill(os.getpid(), signal.SIGKILL)")
    assert "ZeroDivisionError" not in last_block(done.stderr)


def test_a_killed_process_is_said_to_have_taken_much_memory(accel: Run, tmp_path: Path) -> None:
    act = "held = bytearray(b'x') * (300 << 20)\nos.kill(os.getpid(), signal.SIGKILL)"
    found = re.search(r"it took up to (\S+) GiB", launched(accel, tmp_path, ONE + act).stderr)
    assert found is not None
    assert 0.29 < float(found[1]) < 0.6


def test_a_crash_names_its_line_unless_somebody_has_turned_that_off(accel: Run, tmp_path: Path) -> None:
    crash = ONE + "import ctypes\nctypes.string_at(0)"
    block = last_block(launched(accel, tmp_path, crash).stderr)
    assert "seeded.py:5 in <module>\n  it crashed in native code\n" in block
    block = last_block(launched(accel, tmp_path, crash, PYTHONFAULTHANDLER="").stderr)
    assert "it crashed in native code; run it with PYTHONFAULTHANDLER=1 to see the Python line" in block
    assert "seeded.py:" not in block


def test_a_long_message_is_not_repeated_whole_nor_sent_to_the_terminal_raw(accel: Run, tmp_path: Path) -> None:
    done = launched(accel, tmp_path, ONE + r"raise ValueError('\33[2J' + 'x' * 5_000_000)")
    shown = done.stderr[done.stderr.rindex("Traceback (most recent call last):") :]
    assert len(shown) < 5000
    assert "\nValueError: \\x1b[2Jxxx" in shown
    assert "\33" not in shown
