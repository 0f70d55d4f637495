"""The file that took longest runs first."""

import json

import pytest

pytest_plugins = ["pytester"]
INI = "[pytest]\nrecorded_durations = seconds.json\n"


def files(pytester: pytest.Pytester, **pauses: float) -> None:
    for name, pause in pauses.items():
        source = f"import time\ndef test_1(): time.sleep({pause})\ndef test_2(): pass\n"
        pytester.makepyfile(**{f"test_{name}": source})


def run(pytester: pytest.Pytester, *options: str) -> list[str]:
    """The tests in the order in which they ran."""
    result = pytester.runpytest_subprocess("-p", "accel_testing", "-v", *options)
    assert result.ret == 0, result.stdout.str()
    return [line.split()[0] for line in result.stdout.lines if " PASSED" in line]


def test_the_file_that_took_longest_runs_first_and_its_tests_stay_together(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest=INI)
    files(pytester, a=0, b=0.3, c=0, d=0.15)
    first = run(pytester, "--record-durations")
    assert [name.partition("::")[0] for name in first[::2]] == ["test_a.py", "test_b.py", "test_c.py", "test_d.py"]
    seconds = json.loads((pytester.path / "seconds.json").read_text())
    assert seconds["test_b.py"] >= 0.3 > seconds["test_d.py"] >= 0.1 > seconds["test_a.py"]
    second = run(pytester)
    assert second[:4] == ["test_b.py::test_1", "test_b.py::test_2", "test_d.py::test_1", "test_d.py::test_2"]
    assert sorted(second) == sorted(first)


def test_a_file_without_a_record_is_as_long_as_the_usual_one(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest=INI)
    files(pytester, a=0, b=0, c=0, new=0)
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
    pytester.runpytest_subprocess("-p", "accel_testing", "--record-durations").assert_outcomes(failed=1)
    assert not (pytester.path / "seconds.json").exists()


def test_a_record_without_a_file_is_refused(pytester: pytest.Pytester) -> None:
    files(pytester, a=0)
    result = pytester.runpytest_subprocess("-p", "accel_testing", "--record-durations")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*set recorded_durations = FILE*"])
