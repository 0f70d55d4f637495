"""What is read out of the errors that a process has printed."""

import subprocess
import sys
from pathlib import Path

import pytest
from accel_launch.causes import LONGEST, Cause, last_cause, last_fault

PLAIN = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 7, in <module>
    main()
  File "/home/me/model.py", line 3, in main
    raise ValueError("no")
ValueError: no
"""


def marked(mark: str, text: str = PLAIN) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("text", ["", "all is well\n", "Traceback (most recent call last):\n", "a Traceback of mine\n"])
def test_a_text_without_an_exception_has_no_cause(text: str) -> None:
    assert last_cause(text) is None


@pytest.mark.parametrize("mark", ["", "[rank1]: ", "[default0]:[rank1]: ", "    | "])
@pytest.mark.parametrize("after", ["", "W1121 a warning of torch\n", "Exception ignored in: <function f at 0x7>\n"])
def test_a_traceback_is_found_without_what_stands_before_its_lines(mark: str, after: str) -> None:
    assert last_cause("loading\n" + marked(mark) + after) == Cause(
        "ValueError: no", '/home/me/model.py:3 in main: raise ValueError("no")', PLAIN.rstrip()
    )


def test_a_terminal_ends_lines_in_its_own_way() -> None:
    assert last_cause(PLAIN.replace("\n", "\r\n")) == last_cause(PLAIN)


def test_of_several_tracebacks_the_last_one_counts() -> None:
    found = last_cause(PLAIN + "\nDuring handling of the above exception:\n\n" + PLAIN.replace("no", "yes"))
    assert found is not None
    assert (found.what, found.traceback.count("Traceback")) == ("ValueError: yes", 1)


def test_what_ends_no_process_is_no_cause() -> None:
    """A destructor or a thread that fails, before the exception that counts or after it."""
    for words in ("Exception ignored in: <function Loader.__del__ at 0x7>", "Exception in thread Thread-1:"):
        beside = f"{words}\n{PLAIN.replace('no', 'beside')}"
        for text in (beside + PLAIN, PLAIN + beside, marked("[rank1]: ", beside + PLAIN + beside)):
            found = last_cause(text)
            assert found is not None
            assert found.what == "ValueError: no"
    assert last_cause(beside) is not None, "better than nothing"


def test_an_exception_of_pythons_own_exit_has_the_line_of_the_one_before_it() -> None:
    """A loader that finds its worker gone says so once where it is used, and once more at the exit."""
    at_exit = (
        "Traceback (most recent call last):\n"
        '  File "<frozen weakref>", line 666, in _exitfunc\n'
        "    f()\n"
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"
    )
    found = last_cause(PLAIN + at_exit)
    assert found == Cause(
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
        '/home/me/model.py:3 in main: raise ValueError("no")',
        (PLAIN + at_exit).rstrip(),
    )
    apart = last_cause(PLAIN + "a line of the script\n" + at_exit)
    assert apart is not None
    assert apart.where is None, "the one before was caught"


def test_where_python_cannot_print_a_traceback_its_words_are_taken() -> None:
    dump = "object address  : 0x7f5b\nobject refcount : 2\nobject type     : 0x7f5c\nobject type name: EOFError\n"
    found = last_cause(f"Traceback (most recent call last):\n{dump}object repr     : EOFError('x')\nlost sys.stderr\n")
    assert found is not None
    assert (found.what, found.where) == ("EOFError('x')", None)


def test_one_of_a_loader_worker_is_the_one_that_the_worker_had() -> None:
    """The worker's own traceback is text of the exception in the process that it works for."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 9, in <module>\n'
        "    for batch in loader:\n"
        "LookupError: Caught LookupError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/v/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 3, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        "           ^^^^^^^^^^^^^^^^^^^^\n"
        '  File "/home/me/data.py", line 6, in __getitem__\n'
        "    raise LookupError('bad sample')\n"
        "LookupError: bad sample\n\n"
    )
    found = last_cause(text)
    assert found is not None
    assert found.what == "LookupError: bad sample"
    assert found.where == "/home/me/data.py:6 in __getitem__: raise LookupError('bad sample')"
    assert found.traceback.startswith("Original Traceback")


def test_the_users_line_is_the_innermost_that_is_of_no_library() -> None:
    text = PLAIN.replace(
        "ValueError: no",
        '  File "/v/site-packages/torch/nn/linear.py", line 1, in forward\n    return f(x)\n'
        f'  File "{subprocess.__file__}", line 2, in run\n    pass\n'
        '  File "<string>", line 1, in <module>\nValueError: no',
    )
    found = last_cause(text)
    assert found is not None
    assert found.where == '/home/me/model.py:3 in main: raise ValueError("no")'


def test_a_line_whose_source_nobody_has_is_named_without_it() -> None:
    text = 'Traceback (most recent call last):\n  File "/gone.py", line 1, in <module>\nValueError: no\n'
    found = last_cause(text)
    assert found is not None
    assert found.where == "/gone.py:1 in <module>"


def test_a_message_of_several_lines_begins_with_the_exception() -> None:
    found = last_cause(PLAIN.rstrip() + "\n  here\n\n  and there\nafterwards\n")
    assert found is not None
    assert (found.what, found.traceback.splitlines()[-1]) == ("ValueError: no\n  here\n\n  and there", "  and there")


def test_a_syntax_error_of_the_script_has_a_place_too() -> None:
    found = last_cause('noise\n  File "/home/me/train.py", line 2\n    if x ==:\n           ^\nSyntaxError: invalid\n')
    assert found is not None
    assert (found.what, found.where) == ("SyntaxError: invalid", "/home/me/train.py:2: if x ==:")


@pytest.mark.parametrize(
    ("what", "of_a_peer"),
    [
        ("RuntimeError: [/pair.cc:553] Connection closed by peer [127.0.0.1]:9614", True),
        ("torch.distributed.DistBackendError: remote process exited or there was a network error", True),
        ("accel_state.errors.PeerLost: rank 1 is gone", True),
        ("ValueError: no", False),
    ],
)
def test_an_exception_may_be_about_another_process(what: str, of_a_peer: bool) -> None:
    found = last_cause(PLAIN.replace("ValueError: no", what))
    assert found is not None
    assert found.of_a_peer is of_a_peer


def test_a_long_traceback_is_shown_without_its_middle() -> None:
    frames = "".join(f'  File "/f{n}.py", line {n}, in f\n    f()\n' for n in range(100))
    found = last_cause(f"Traceback (most recent call last):\n{frames}ValueError: no\n")
    assert found is not None
    lines = found.shown.splitlines()
    assert len(lines) == LONGEST + 1
    assert (lines[1], lines[5], lines[-1]) == ('  File "/f0.py", line 0, in f', "  ... 172 lines ...", "ValueError: no")


def test_a_fault_has_the_line_that_the_handler_names(tmp_path: Path) -> None:
    script = tmp_path / "fault.py"
    script.write_text(
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "def fall():\n    ctypes.string_at(0)\n"
        "fall()\n"
    )
    done = subprocess.run([sys.executable, "-X", "faulthandler", str(script)], capture_output=True, text=True)
    found = last_fault(PLAIN + done.stderr)
    assert found is not None
    assert (found.what, found.where) == ("Fatal Python error: Segmentation fault", f"{script}:4 in fall")


def test_a_fault_without_a_handler_has_no_line() -> None:
    thrown = "terminate called after throwing an instance of 'std::bad_alloc'"
    assert last_fault(f"{thrown}\n  what(): no\n") == Cause(thrown, None, thrown)
    assert last_fault(PLAIN) is None
