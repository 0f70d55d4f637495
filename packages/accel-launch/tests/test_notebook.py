"""Functions launched from Python, as a notebook would."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import accel_launch
import pytest
from accel_comm.errors import AccelError
from accel_launch import debug_launcher, notebook_launcher
from accel_state.errors import CannotRun
from accel_testing import stretched

Notebook = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def notebook(tmp_path: Path, silent_environ: Mapping[str, str]) -> Notebook:
    """Runs code as cells of a notebook: it has no file, and its functions live in __main__."""

    def run(code: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-"],
            input="from accel_launch import notebook_launcher, debug_launcher\n" + textwrap.dedent(code),
            cwd=tmp_path,
            env={**silent_environ, **environ},
            capture_output=True,
            text=True,
            timeout=stretched(60),
            check=False,
        )

    return run


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_a_function_of_the_notebook_runs_on_two_processes(notebook: Notebook) -> None:
    """S112."""
    done = notebook("""
        import os
        scale = 10
        def train(add, *, keys=("RANK", "WORLD_SIZE", "ACCEL_MIXED_PRECISION")):
            return [os.environ[key] for key in keys], int(os.environ["RANK"]) * scale + add
        print(notebook_launcher(train, (5,), num_processes=2, mixed_precision="bf16"))
        print(notebook_launcher(train, args=(7,), num_processes=2, use_port="29500", num_nodes=1)[1][1])
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[(['0', '2', 'bf16'], 5), (['1', '2', 'bf16'], 15)]\n17\n"


def test_without_a_count_there_is_a_process_for_each_accelerator_or_one(notebook: Notebook) -> None:
    """Decision 5."""
    code = "import os\nprint(len(notebook_launcher(lambda: os.environ.get('RANK'))))"
    assert notebook(code).stdout == "1\n"
    assert notebook(code, CUDA_VISIBLE_DEVICES="0,1").stdout == "2\n"


def test_one_process_does_not_see_the_store_of_a_job_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCEL_STORE_PORT", "4999")
    assert notebook_launcher(lambda: "ACCEL_STORE_PORT" in os.environ, num_processes=1) == [False]
    assert os.environ["ACCEL_STORE_PORT"] == "4999"


def test_one_process_is_this_one_and_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_MIXED_PRECISION", "no")
    monkeypatch.delenv("RANK", raising=False)
    before = dict(os.environ)

    def look(word: str) -> tuple[int, str, str, bool]:
        return os.getpid(), word, os.environ["ACCEL_MIXED_PRECISION"], "RANK" in os.environ

    assert notebook_launcher(look, ("w",), mixed_precision="fp16") == [(os.getpid(), "w", "fp16", False)]
    assert dict(os.environ) == before

    def fail() -> None:
        raise KeyError("own error")

    with pytest.raises(KeyError, match="own error"):
        notebook_launcher(fail, num_processes=1)
    assert dict(os.environ) == before


def test_the_debug_launcher_is_on_the_cpu(notebook: Notebook) -> None:
    done = notebook("""
        import os
        print(debug_launcher(lambda: (os.environ["RANK"], os.environ["ACCEL_USE_CPU"])))
        print(debug_launcher(lambda: os.environ["ACCEL_USE_CPU"], num_processes=1))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[('0', '1'), ('1', '1')]\n['1']\n"


def test_the_debug_launcher_starts_processes_beside_a_run(notebook: Notebook) -> None:
    """As a test does that comes after tests with an Accelerator of their own."""
    done = notebook("""
        import os
        from accel_state import PartialState
        print(PartialState(cpu=True).num_processes, debug_launcher(lambda: os.environ["RANK"]))
    """)
    assert (done.returncode, done.stdout) == (0, "1 ['0', '1']\n"), done.stderr


def test_a_failing_process_shows_its_traceback_and_ends_the_others(notebook: Notebook) -> None:
    done = notebook("""
        import os, time
        def train():
            if os.environ["RANK"] == "1":
                raise ValueError("bad batch")
            time.sleep(60)
        try:
            debug_launcher(train)
        except Exception as error:
            import accel_comm
            print(isinstance(error, accel_comm.AccelError))
            print(error)
    """)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "True"
    assert lines[1] == "Traceback (most recent call last):"
    block = lines.index("") + 1
    assert lines[block - 2] == "ValueError: bad batch"
    assert lines[block].startswith("accel: rank 1 of 2 (pid ")
    assert "notebook_worker" not in "".join(lines[:block])
    assert "ValueError: bad batch" in done.stderr


def test_a_killed_process_is_explained(notebook: Notebook) -> None:
    done = notebook("""
        import os, signal
        debug_launcher(lambda: os.kill(os.getpid(), signal.SIGKILL))
    """)
    assert done.returncode == 1
    assert "was killed by SIGKILL\n  often out of memory" in done.stderr


def test_a_function_of_a_module_is_found_by_the_notebooks_search_path(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "my_training.py").write_text("def train(x):\n    return __name__, x\n")
    done = notebook("""
        import sys
        sys.path.insert(0, "lib")
        from my_training import train
        print(debug_launcher(train, (1,)))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[('my_training', 1), ('my_training', 1)]\n"


def test_a_result_that_cannot_travel_is_explained(notebook: Notebook) -> None:
    done = notebook("import threading\ndebug_launcher(lambda: threading.Lock())")
    assert "what the function returned on rank" in done.stderr
    assert "return numbers, strings, lists, tensors or None" in done.stderr


def test_a_function_that_leaves_by_sys_exit_0_returns_none(notebook: Notebook) -> None:
    assert notebook("import sys\nprint(debug_launcher(sys.exit))").stdout == "[None, None]\n"


def test_an_accelerator_made_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """S113."""
    monkeypatch.setattr("accel_state.is_initialized", lambda: True)
    with pytest.raises(CannotRun, match=r"create it inside the function .* restart the kernel"):
        notebook_launcher(print, num_processes=2)
    assert notebook_launcher(len, ("abc",), num_processes=1) == [3]


def test_cloudpickle_that_is_missing_has_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_launch.notebook.notebook_launcher.find_spec", lambda name: None)
    with pytest.raises(CannotRun, match="pip install cloudpickle"):
        debug_launcher(print)


def test_all_keywords_that_cannot_be_followed_are_told_at_once() -> None:
    wrong: Any = 3
    with pytest.raises(CannotRun) as caught:
        notebook_launcher(wrong, num_processes=0, mixed_precision="fp4", num_nodes=2, max_restarts=1, num_procs=2)
    assert [reason.split("=")[0].split(" is")[0] for reason in caught.value.reasons] == [
        "num_nodes",
        "max_restarts",
        "there",
        "num_processes",
        "mixed_precision",
        "expected a function, found 3; name it without calling it: notebook_launcher(train, args)",
    ]
    assert "did you mean 'num_processes'?" in caught.value.reasons[2]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (0.5, "args: expected a tuple or a list of .* found a float; for one argument write (x,)"),
        ("abc", "args: expected a tuple or a list of .* found a str; for one argument write (x,)"),
        (None, "found a NoneType"),
    ],
)
@pytest.mark.parametrize("launcher", [notebook_launcher, debug_launcher])
def test_arguments_without_brackets_are_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, launcher: Callable[..., object], args: object, words: str
) -> None:
    monkeypatch.setattr(
        "accel_launch.notebook.notebook_launcher.run_job", lambda *_, **__: pytest.fail("it was started")
    )
    for count in (1, 2):
        with pytest.raises(CannotRun) as caught:
            launcher(print, args, num_processes=count)
        (reason,) = caught.value.reasons
        assert re.search(re.escape(words).replace(r"\.\*", ".*"), reason)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(AccelError, match="3 processes were asked for"):
        notebook_launcher(print, num_processes=3)


def test_an_interrupt_ends_the_processes(tmp_path: Path, silent_environ: Mapping[str, str]) -> None:
    """T30."""
    code = (
        "import os, time\n"
        "from accel_launch import debug_launcher\n"
        "def train():\n"
        "    open(f'pid-{os.getpid()}', 'w').close()\n"
        "    time.sleep(600)\n"
        "debug_launcher(train)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=silent_environ, stderr=subprocess.PIPE, text=True
    ) as kernel:
        until_s = time.monotonic() + stretched(60)
        while len(list(tmp_path.glob("pid-*"))) < 2 and time.monotonic() < until_s:
            time.sleep(0.01)
        children = [int(path.name[4:]) for path in tmp_path.glob("pid-*")]
        kernel.send_signal(signal.SIGINT)
        _, err = kernel.communicate(timeout=stretched(60))
    assert len(children) == 2
    assert "KeyboardInterrupt" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_nothing_stays_in_the_temporary_folder(notebook: Notebook, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    code = (
        "import os, stat\n"
        "def look():\n"
        "    import os, pathlib\n"  # gettempdir would try whether it can write a file there
        "    return sorted({oct(f.stat().st_mode & 0o777) for f in pathlib.Path(os.environ['TMPDIR']).iterdir()})\n"
        "print(debug_launcher(look))"
    )
    assert notebook(code, TMPDIR=str(folder)).stdout == "[['0o700'], ['0o700']]\n"
    assert list(folder.iterdir()) == []


def test_the_public_names_are_these() -> None:
    assert accel_launch.__all__ == ["debug_launcher", "notebook_launcher"]
    with pytest.raises(AttributeError, match="it has debug_launcher, notebook_launcher"):
        accel_launch.something  # noqa: B018 - looking it up is what raises
