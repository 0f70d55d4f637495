"""A program that is forked is the program that `python` would have started."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accel_testing import stretched
from forked_programs.forking_python import ForkingPython

SOON_S = stretched(30)


@pytest.fixture
def both(forking_python: str, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a program by Python and by its stand-in, which have to end alike, and gives the latter's end."""

    def run(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        ends = [
            subprocess.run(
                [python, *arguments],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=SOON_S,
                **options,
            )
            for python in (sys.executable, forking_python)
        ]
        real, forked = ends
        assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)
        return forked

    return run


def script(tmp_path: Path, text: str) -> str:
    (tmp_path / "program.py").write_text(text)
    return "program.py"


Both = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("start", [["program.py"], ["-u", "program.py"], ["-m", "program"]])
def test_arguments_names_and_paths_are_those_of_python(both: Both, tmp_path: Path, start: list[str]) -> None:
    script(
        tmp_path,
        "import sys, os\nprint(sys.argv, sys.orig_argv[1:], __name__, __file__, sys.path, os.getcwd(), __package__)\n"
        "print(sys.modules['__main__'].__dict__ is globals(), sorted(name for name in globals()))",
    )
    ended = both(*start, "--lr", "0.1", "ä \udcff")
    assert "'--lr', '0.1', 'ä \\udcff'" in ended.stdout


def test_code_is_compiled_without_our_future_imports(both: Both, tmp_path: Path) -> None:
    code = "def f(x: int): pass\nprint(f.__annotations__)"
    assert both(script(tmp_path, code)).stdout == both("-c", code).stdout == "{'x': <class 'int'>}\n"


def test_variables_of_python_that_can_be_followed_are(both: Both, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import sys, os; print(sys.dont_write_bytecode); print('kept', end=''); os.kill(os.getpid(), 9)"
    assert both(script(tmp_path, code), env=environ).stdout == "True\nkept"


@pytest.mark.parametrize(("variable", "line", "told"), [("", "", 0), ("1", "", 1), ("", "faulthandler.enable()", 1)])
def test_a_crash_is_told_if_the_program_asks_for_it(forking_python: str, variable: str, line: str, told: int) -> None:
    code = f"import os, faulthandler; {line}\nos.kill(os.getpid(), 11)"
    environ = {**os.environ, "PYTHONFAULTHANDLER": variable}
    ended = subprocess.run(
        [forking_python, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=SOON_S
    )
    assert (ended.returncode, ended.stderr.count("Fatal Python error: Segmentation fault")) == (-signal.SIGSEGV, told)


def test_a_signal_of_the_program_to_its_group_leaves_its_parent_alone(forking_python: str) -> None:
    code = "import os, signal, time; signal.signal(10, lambda *_: print('heard')); os.killpg(0, 10); time.sleep(0.3)"
    ended = subprocess.run([forking_python, "-c", code], capture_output=True, text=True, check=False, timeout=SOON_S)
    assert (ended.returncode, ended.stdout) == (0, "heard\n")


def test_code_on_the_command_line_runs(both: Both) -> None:
    assert both("-c", "import sys; print(sys.argv, sys.path[0], __name__)", "x").stdout == "['-c', 'x']  __main__\n"


def test_the_environment_is_the_stubs_alone(both: Both) -> None:
    environ = {"PATH": os.environ["PATH"], "ONLY": "here", "OMP_NUM_THREADS": "1"}
    kept = [name for name in os.environ if name.startswith(("PYTHON", "LD_", "TORCH_")) and name != "PYTHONPATH"]
    environ |= {name: os.environ[name] for name in kept}
    code = "import os; print({name: os.environ[name] for name in sorted(os.environ) if name != 'LC_CTYPE'})"
    assert "'ONLY': 'here'" in both("-c", code, env=environ).stdout


def test_pythonpath_and_its_sitecustomize_are_followed(both: Both, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("print('first')")
    (folder / "neighbour.py").write_text("print('imported')")
    ended = both("-c", "import neighbour, sys; print(sys.path[1])", env={**os.environ, "PYTHONPATH": str(folder)})
    assert ended.stdout == f"first\nimported\n{folder}\n"


def test_the_folder_and_the_mask_of_new_files_are_the_stubs(both: Both, tmp_path: Path) -> None:
    ended = both("-c", "import os; print(os.getcwd()); os.umask(m := os.umask(0)); print(oct(m))", umask=0o027)
    assert ended.stdout == f"{tmp_path}\n0o27\n"


def test_limits_of_resources_are_the_stubs(both: Both) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))

    ended = both("-c", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))", preexec_fn=limit)
    assert ended.stdout == "(200, 300)\n"


def test_descriptors_keep_their_numbers_and_others_stay_closed(both: Both, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a descriptor")
    with open(tmp_path / "text") as file:
        number = file.fileno()
        code = (
            f"import os; print(os.pread({number}, 99, 0).decode(), os.get_inheritable({number}), os.listdir('/dev/fd'))"
        )
        assert "from a descriptor True" in both("-c", code, pass_fds=[number]).stdout


def test_a_closed_standard_stream_is_none(both: Both) -> None:
    ended = both("-c", "import sys; print(sys.stdin); sys.stderr.write('told')", preexec_fn=lambda: os.close(0))
    assert (ended.stdout, ended.stderr) == ("None\n", "told")


def test_a_script_that_is_not_there_is_the_error_of_python(forking_python: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [forking_python, "absent.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SOON_S
    )
    assert ended.returncode == 2
    assert ended.stderr.endswith(f"can't open file '{tmp_path / 'absent.py'}': [Errno 2] No such file or directory\n")


def test_the_time_zone_is_that_of_the_environment(both: Both) -> None:
    ended = both("-c", "import time; print(time.strftime('%Z'))", env={**os.environ, "TZ": "XYZ-9"})
    assert ended.stdout == "XYZ\n"


def test_standard_input_is_read(both: Both) -> None:
    assert both("-c", "print(input().upper())", input="words\n").stdout == "WORDS\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(7)", 7),
        ("raise SystemExit(-1)", 255),
        ("raise SystemExit('in words')", 1),
        ("1 / 0", 1),
        ("syntax error", 1),
        ("import os; os._exit(9)", 9),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import atexit; atexit.register(print, 'last'); 1 / 0", 1),
        ("import sys; sys.excepthook = lambda *_: print('told'); 1 / 0", 1),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.6), print('joined'))).start()", 0),
    ],
)
def test_a_program_ends_as_python_ends(both: Both, tmp_path: Path, code: str, status: int) -> None:
    assert both(script(tmp_path, code)).returncode == status


def test_a_traceback_has_the_frames_of_the_program_alone(both: Both, tmp_path: Path) -> None:
    ended = both("-m", script(tmp_path, "def fail():\n    raise ValueError('bad')\nfail()").removesuffix(".py"))
    assert 'program.py", line 2, in fail' in ended.stderr


def test_signals_that_were_ignored_stay_ignored(both: Both) -> None:
    code = "import signal; print([signal.getsignal(n) for n in (1, 2, 13, 15)], signal.pthread_sigmask(0, []))"

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    assert "SIG_IGN" in both("-c", code, preexec_fn=ignore).stdout
    both("-c", code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
@pytest.mark.parametrize("handled", [False, True])
def test_a_signal_to_the_stub_reaches_the_program(forking_python: str, number: signal.Signals, handled: bool) -> None:
    handler = f"signal.signal({int(number)}, lambda *_: sys.exit(3))" if handled else ""
    code = f"import signal, sys, time; {handler}\nprint('ready', flush=True); time.sleep({SOON_S})"
    with subprocess.Popen(
        [forking_python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as stub:
        assert stub.stdout is not None
        assert stub.stdout.readline() == "ready\n"
        stub.send_signal(number)
        assert stub.wait(SOON_S) == (3 if handled else -number)


def test_signals_while_the_program_ends_change_nothing(forking_python: str) -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print('ready', flush=True)"
    for _ in range(8):
        with subprocess.Popen(
            [forking_python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as stub:
            assert stub.stdout is not None
            assert stub.stderr is not None
            assert stub.stdout.readline() == "ready\n"
            while stub.poll() is None:
                stub.send_signal(signal.SIGUSR1)
                time.sleep(0.001)
            assert (stub.returncode, stub.stderr.read()) == (0, "")


def test_signals_that_nobody_reads_for_a_while_do_not_end_the_stub(forking_python: str) -> None:
    code = "import os, signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(os.getppid(), flush=True); input()"
    with subprocess.Popen(
        [forking_python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as stub:
        assert stub.stdout is not None
        assert stub.stderr is not None
        monitor = int(stub.stdout.readline())
        os.kill(monitor, signal.SIGSTOP)
        for _ in range(2000):
            stub.send_signal(signal.SIGUSR1)
            time.sleep(0.0002)
        os.kill(monitor, signal.SIGCONT)
        assert stub.communicate("\n", timeout=SOON_S)[1] == ""
        assert stub.returncode == 0


def lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    until = time.monotonic() + SOON_S
    while lives(pid):
        assert time.monotonic() < until, f"process {pid} still lives"
        time.sleep(0.01)


def waiting_program(python: str) -> tuple["subprocess.Popen[str]", int]:
    code = f"import os, time; print(os.getpid(), flush=True); time.sleep({SOON_S})"
    stub = subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert stub.stdout is not None
    return stub, int(stub.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_program_dies_with_its_stub(forking_python: str) -> None:
    stub, pid = waiting_program(forking_python)
    with stub:
        stub.kill()
        wait_for_end(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_end_of_the_session_ends_programs_and_their_stubs() -> None:
    with ForkingPython() as python:
        stub, pid = waiting_program(os.fspath(python))
    with stub:
        wait_for_end(pid)
        assert stub.wait(SOON_S) == -signal.SIGKILL
    assert not os.path.exists(python.executable)


def test_a_program_starts_others_by_its_own_executable(forking_python: str) -> None:
    code = (
        "import subprocess, sys, os; print(sys.executable, flush=True)\n"
        "other = 'import os; print(os.environ[\"A\"], flush=True)'\n"
        "subprocess.run([sys.executable, '-c', other], env={**os.environ, 'A': 'b'})\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(5)'])"
    )
    ended = subprocess.run([forking_python, "-c", code], stdout=subprocess.PIPE, text=True, check=False, timeout=SOON_S)
    assert (ended.stdout, ended.returncode) == (f"{forking_python}\nb\n", 5)


def test_torch_is_there_and_random_numbers_are_not_shared(forking_python: str) -> None:
    code = (
        "import sys; there = 'torch' in sys.modules\nimport random, numpy, json, torch\n"
        "print(json.dumps([there, random.random(), numpy.random.rand(), torch.rand(1).item()]))"
    )
    ends = [json.loads(subprocess.check_output([forking_python, "-c", code], timeout=SOON_S)) for _ in range(2)]
    assert [there for there, *_ in ends] == [True, True]
    assert not set(ends[0][1:]) & set(ends[1][1:])


def test_functions_of_the_script_go_to_processes_of_its_own(both: Both, tmp_path: Path) -> None:
    text = (
        "import multiprocessing\n\ndef double(x):\n    return 2 * x\n\nif __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n        with multiprocessing.get_context(way).Pool(1) as pool:\n"
        "            print(pool.map(double, [1, 2]))\n"
    )
    assert both(script(tmp_path, text)).stdout == "[2, 4]\n[2, 4]\n"


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        (["-V"], {}, "its arguments are ['-V']: expected -u or nothing, then -m MODULE, -c CODE or SCRIPT"),
        ([], {}, "its arguments are []"),
        (["-m"], {}, "its arguments are ['-m']"),
        (["."], {}, "its script is '.': expected a file, and neither a folder nor the standard input"),
        (["-"], {}, "its script is '-'"),
        (["-c", ""], {"env": {**os.environ, "PYTHONHASHSEED": "17"}}, "PYTHONHASHSEED is 17, and "),
        (["-c", ""], {"env": {**os.environ, "TORCH_LOGS": "+all"}}, "TORCH_LOGS is +all, and unset in the server"),
        (["-c", ""], {"preexec_fn": lambda: os.nice(3)}, "its niceness is "),
    ],
)
def test_what_no_fork_can_be_is_refused_in_words(
    forking_python: str, arguments: list[str], options: dict[str, Any], why: str
) -> None:
    ended = subprocess.run(
        [forking_python, *arguments], capture_output=True, text=True, check=False, timeout=SOON_S, **options
    )
    assert (ended.returncode, ended.stdout) == (125, "")
    assert "no such start can be forked; use a real Python:" in ended.stderr
    assert why in ended.stderr


def test_too_many_descriptors_are_refused(forking_python: str) -> None:
    numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(260)]
    try:
        ended = subprocess.run(
            [forking_python, "-c", ""], pass_fds=numbers, capture_output=True, text=True, check=False, timeout=SOON_S
        )
    finally:
        for number in numbers:
            os.close(number)
    assert ended.returncode == 125
    assert "open descriptors: at most 250 can be handed on" in ended.stderr


def test_another_copy_of_an_imported_package_is_refused(forking_python: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [forking_python, "-c", ""], env=environ, capture_output=True, text=True, check=False, timeout=SOON_S
    )
    assert f"it finds torch in {tmp_path / 'torch.py'}, and the server has imported" in ended.stderr


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('no good')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match="no good"):
        ForkingPython(["broken"])
