"""A watched script runs as `python script.py` runs it, and says why it fails in a file."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SEES = """\
import json, multiprocessing, os, pickle, sys, traceback

class Here:
    pass

def work(value):
    return value + 1

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(work, [1]) == [2]
    found = {
        "main": sys.modules["__main__"].__name__,
        "file": __file__,
        "argv": sys.argv,
        "path": sys.path,
        "orig": sys.orig_argv,
        "python path": os.environ.get("PYTHONPATH"),
        "pickled": pickle.dumps(Here()).hex(),
        "stack": [frame.filename for frame in traceback.extract_stack()],
        "spec": None if __spec__ is None else [__spec__.name, __spec__.origin],
    }
    print(json.dumps(found, sort_keys=True))
"""


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


@pytest.mark.parametrize("how", [["script.py"], ["-m", "script"]])
def test_a_script_sees_what_it_sees_without_the_launcher(
    accel: Run, tmp_path: Path, silent_environ: Mapping[str, str], how: list[str]
) -> None:
    (tmp_path / "script.py").write_text(SEES)
    alone = subprocess.run(
        [sys.executable, *how, "x", "--y"], cwd=tmp_path, env=silent_environ, capture_output=True, text=True, check=True
    )
    done = accel("launch", "--cpu", "-n", "2", *how, "x", "--y")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert json.loads(first) == json.loads(second) == json.loads(alone.stdout)


def test_a_sitecustomize_of_the_users_own_runs_as_ever(accel: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import builtins; builtins.MINE = 'here'\n")
    (tmp_path / "script.py").write_text("import sys; print(MINE, sys.modules['sitecustomize'].__file__)")
    path = os.pathsep.join([str(mine), *filter(None, sys.path)])
    done = accel("launch", "--cpu", "-n", "2", "script.py", environ={"PYTHONPATH": path})
    assert done.stdout == f"here {mine / 'sitecustomize.py'}\n" * 2, done.stderr


FAILS = "import os, sys, threading, time\nif os.environ['RANK'] == '0': time.sleep(60)\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # a library such as rich prints tracebacks by a hook of its own, which calls no other
        ("sys.excepthook = lambda *about: print('mine', file=sys.stderr)\nraise ValueError('no')", "ValueError: no\n"),
        (
            "thread = threading.Thread(target=lambda: 1 / 0, name='worker')\nthread.start()\nthread.join()\n"
            "sys.exit(4)",
            "in thread worker: ZeroDivisionError: division by zero\n",
        ),
        (
            "import subprocess\n"
            "code = 'import accel_state.failure_file as f, os; f.install(os.environ); raise KeyError(7)'\n"
            "sys.exit(subprocess.run([sys.executable, '-c', code]).returncode)",
            ": KeyError: 7\n",
        ),
    ],
)
def test_an_exception_is_told_wherever_it_was_raised(accel: Run, tmp_path: Path, script: str, words: str) -> None:
    (tmp_path / "script.py").write_text(FAILS + script)
    said = accel("launch", "--cpu", "-n", "2", "script.py").stderr
    block = said[said.rindex("accel: rank 1 of 2 ") :]
    assert words in block


def test_one_that_only_lost_a_peer_prints_one_line(accel: Run, tmp_path: Path) -> None:
    script = FAILS.replace("time.sleep(60)", "time.sleep(0.5); raise ValueError('the cause')")
    (tmp_path / "script.py").write_text(script + "raise RuntimeError('[pair.cc:5] Connection closed by peer')")
    done = accel("launch", "--cpu", "-n", "2", "script.py")
    assert done.returncode == 1
    assert "accel: rank 1 lost another process: RuntimeError: [pair.cc:5] Connection closed by peer\n" in done.stderr
    assert "accel: rank 0 of 2 " in done.stderr
    end = done.stderr[: done.stderr.index("accel: rank 0 of 2 ")]
    assert "ValueError: the cause" in end.splitlines()[-2:][0], "its traceback is the last thing on the screen"


def test_the_file_for_fatal_signals_is_left_without_a_warning(
    silent_environ: Mapping[str, str], tmp_path: Path
) -> None:
    """As when the script has faulthandler write elsewhere, and at the end of the process."""
    install = "import faulthandler, os\nfrom accel_state.failure_file import install\ninstall(os.environ)\n"
    environ = {**silent_environ, "ACCEL_FLIGHT_RECORDER": str(tmp_path), "PYTHONWARNINGS": "always"}
    for then in ("", "faulthandler.enable()", "import ctypes; ctypes.string_at(0)"):
        done = subprocess.run([sys.executable, "-c", install + then], env=environ, capture_output=True, text=True)
        assert "ResourceWarning" not in done.stderr
    assert [file.stat().st_size > 0 for file in sorted(tmp_path.glob("fault-0-*"))].count(True) == 1


def test_what_torch_asks_for_is_written_too(silent_environ: Mapping[str, str], tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    code = "import os\nfrom accel_state.failure_file import install\ninstall(os.environ)\nraise ValueError('no')"
    environ = {**silent_environ, "TORCHELASTIC_ERROR_FILE": str(file)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert "ValueError: no" in done.stderr
    message = json.loads(file.read_text())["message"]
    assert message["message"] == "ValueError: no"
    assert "Traceback" in message["extraInfo"]["py_callstack"]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_a_process_that_torchrun_started_tells_torchrun(
    silent_environ: Mapping[str, str], forking_python: str, tmp_path: Path
) -> None:
    pytest.importorskip("accel")
    (tmp_path / "script.py").write_text(
        "from accel import Accelerator\naccelerator = Accelerator(cpu=True)\nraise ValueError('told to torchrun')\n"
    )
    command = [forking_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=silent_environ, capture_output=True, text=True)
    report = done.stderr[done.stderr.index("Root Cause (first observed failure):") :]
    assert "ValueError: told to torchrun" in report


TERMINAL = """\
import os, sys
names = [os.ttyname(number) for number in (1, 2)]
open(f"saw-{os.environ.get('RANK', 'alone')}", "w").write(str([sys.stdout.isatty(), sys.stderr.isatty(), names]))
"""


def test_output_and_errors_of_a_rank_are_the_terminal_itself(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    (tmp_path / "script.py").write_text(TERMINAL)
    ours, theirs = os.openpty()
    for command in (["script.py"], ["-m", "accel_launch", "launch", "--cpu", "-n", "2", "script.py"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=silent_environ, stdout=theirs, stderr=theirs
        )
        assert done.returncode == 0
    os.close(theirs)
    os.close(ours)
    saw = {file.name: file.read_text() for file in tmp_path.glob("saw-*")}
    assert saw["saw-0"] == saw["saw-1"] == saw["saw-alone"]
    assert saw["saw-0"].startswith("[True, True, ")
