from __future__ import annotations

import time
from contextlib import nullcontext

import pytest
from accel_testing import MakePool, RankFailure, stretched
from accel_testing.time_limits import VARIABLE

pytest_plugins = ["pytester"]

NAPS = """
import time, pytest
@pytest.mark.timeout(0.1)
def test_marked():
    time.sleep(1)
def test_not_marked():
    time.sleep(1)
"""


@pytest.mark.parametrize(("text", "seconds"), [("", 30), ("1", 30), ("2.5", 75), ("1e3", 30_000)])
def test_the_factor_stretches_a_limit(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    assert stretched(30) == seconds


def test_without_the_variable_limits_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert stretched(30) == 30


@pytest.mark.parametrize("text", ["much", "0", "0.5", "-3", "nan", "inf", "1001"])
def test_a_factor_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=f"^{VARIABLE}='{text}': expected a number from 1 to 1000"):
        stretched(30)


def test_a_session_with_a_bad_factor_begins_no_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile("def test_one():\n    pass")
    monkeypatch.setenv(VARIABLE, "much")
    result = pytester.runpytest_inprocess("-p", "accel_testing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {VARIABLE}='much': expected a number*"])


@pytest.mark.parametrize(("factor", "failed"), [("1", 2), ("300", 0)])
def test_the_factor_stretches_the_limits_of_tests(
    factor: str, failed: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits by a mark and by the option, each of a tenth of a second for what takes a second."""
    pytest.importorskip("pytest_timeout")
    pytester.makepyfile(NAPS)
    monkeypatch.setenv(VARIABLE, factor)
    result = pytester.runpytest_subprocess("-p", "accel_testing", "--timeout=0.1")
    result.assert_outcomes(failed=failed, passed=2 - failed)


def nap() -> None:
    time.sleep(1)


@pytest.mark.parametrize(("factor", "late"), [("1", True), ("300", False)])
def test_the_factor_stretches_the_limit_of_a_pool(
    factor: str, late: bool, world: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, factor)
    with pytest.raises(RankFailure, match="was late") if late else nullcontext():
        world(1, join=False).run(nap, timeout_s=0.1)
