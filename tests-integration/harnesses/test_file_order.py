"""The file that took longest runs first."""

import json
import os
import sys
from pathlib import Path

import pytest
from suite.file_order import DurationRecorder

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


INI = "[pytest]\nrecorded_durations = seconds.json\n"


def files(pytester: pytest.Pytester, *names: str) -> None:
    for name in names:
        pytester.makepyfile(**{f"test_{name}": "def test_1(): pass\ndef test_2(): pass\n"})


def run(pytester: pytest.Pytester, *options: str) -> list[str]:
    """The tests in the order in which they ran."""
    result = pytester.runpytest_subprocess("-p", "suite.file_order", "-v", *options)
    assert result.ret == 0, result.stdout.str()
    return [line.split()[0] for line in result.stdout.lines if " PASSED" in line]


def test_the_file_that_took_longest_runs_first_and_its_tests_stay_together(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest=INI)
    files(pytester, "a", "b", "c")
    (pytester.path / "seconds.json").write_text('{"test_a.py": 1, "test_b.py": 3, "test_c.py": 2}')
    assert run(pytester) == [f"test_{name}.py::test_{number}" for name in "bca" for number in (1, 2)]


def report(file: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(f"{file}::test", (file, 0, "test"), {}, "passed", None, "call", duration=seconds)


def test_seconds_add_up_and_files_that_did_not_run_keep_theirs(tmp_path: Path) -> None:
    record = tmp_path / "seconds.json"
    record.write_text('{"test_a.py": 1, "test_b.py": 3, "test_gone.py": 9}')
    (tmp_path / "test_b.py").touch()
    recorder = DurationRecorder(record, tmp_path)
    for file, seconds in (("test_a.py", 1.5), ("test_c.py", 0.25), ("test_a.py", 2.5)):
        recorder.pytest_runtest_logreport(report(file, seconds))
    recorder.pytest_sessionfinish(0)
    assert json.loads(record.read_text()) == {"test_a.py": 4.0, "test_b.py": 3, "test_c.py": 0.2}


def test_a_session_records_its_files(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest=INI)
    files(pytester, "a", "b")
    run(pytester, "--record-durations")
    assert json.loads((pytester.path / "seconds.json").read_text()).keys() == {"test_a.py", "test_b.py"}


def test_a_file_without_a_record_is_as_long_as_the_usual_one(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest=INI)
    files(pytester, "a", "b", "c", "new")
    (pytester.path / "seconds.json").write_text('{"test_a.py": 1, "test_b.py": 2, "test_c.py": 9, "test_gone.py": 2}')
    assert [name.partition("::")[0] for name in run(pytester)[::2]] == [
        "test_c.py",
        "test_b.py",
        "test_new.py",
        "test_a.py",
    ]


def test_a_session_that_failed_records_nothing(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest=INI)
    pytester.makepyfile(test_bad="def test_it(): assert 0")
    pytester.runpytest_subprocess("-p", "suite.file_order", "--record-durations").assert_outcomes(failed=1)
    assert not (pytester.path / "seconds.json").exists()


@pytest.mark.parametrize("text", ["{x", "[1]", '{"test_a.py": "x"}'])
def test_a_damaged_record_is_named(pytester: pytest.Pytester, text: str) -> None:
    pytester.makefile(".ini", pytest=INI)
    (pytester.path / "seconds.json").write_text(text)
    files(pytester, "a")
    result = pytester.runpytest_subprocess("-p", "suite.file_order")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*recorded_durations: *seconds.json has *expected JSON*"])


def test_a_record_without_a_file_is_refused(pytester: pytest.Pytester) -> None:
    files(pytester, "a")
    result = pytester.runpytest_subprocess("-p", "suite.file_order", "--record-durations")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*set recorded_durations = FILE*"])
