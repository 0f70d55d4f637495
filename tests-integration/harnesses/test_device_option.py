"""The device of --device, and the tests that run on any."""

from __future__ import annotations

import pytest
import torch

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "suite.device_option", "--import-mode=importlib", *args)


def test_the_device_is_the_one_asked_for(pytester: pytest.Pytester) -> None:
    source = "def test_device(device):\n    assert device.type == 'cpu'"
    run(pytester, source).assert_outcomes(passed=1)
    run(pytester, source, "--device=cpu").assert_outcomes(passed=1)


def test_the_tests_that_use_the_device_can_be_chosen(pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        @pytest.fixture
        def place(device):
            return device
        def test_one(device): pass
        def test_two(place): pass
        def test_other(): pass
        """
    run(pytester, source, "-m", "device", "--strict-markers").assert_outcomes(passed=2, deselected=1)
    run(pytester, source, "-m", "not device").assert_outcomes(passed=1, deselected=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there_skips_the_test_with_the_reason(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_device(device):\n    pass", "--device=cuda", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*--device=cuda: torch.cuda.is_available() is False*"])
