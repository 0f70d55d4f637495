"""The classes, commands and decorators that tests for Accelerate take from `test_utils`."""

import sys
import unittest
import unittest.mock
from pathlib import Path

import accel.test_utils as found
import pytest
from accel import Accelerator
from accel_state import is_initialized


def test_tests_derive_from_the_classes() -> None:
    class Tests(found.AccelerateTestCase, found.TempDirTestCase, found.MockingTestCase):
        def setUp(self) -> None:
            super().setUp()
            self.add_mocks(unittest.mock.patch.dict("os.environ", {"MINE": "1"}))

        def test_first(self) -> None:
            Accelerator(cpu=True)
            assert not list(self.tmpdir.iterdir())
            (self.tmpdir / "folder").mkdir()
            (self.tmpdir / "file").touch()

        test_second = test_first

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (result.testsRun, result.failures, result.errors) == (2, [], [])
    assert not Tests.tmpdir.exists()
    assert not is_initialized()


def test_commands_show_what_they_wrote() -> None:
    assert found.run_command([Path(sys.executable), "-c", "print(3)"], return_stdout=True) == "3\n"
    with pytest.raises(found.SubprocessCallException, match=r"ended with exit code 4:\nwords"):
        found.run_command([sys.executable, "-c", "print('words'); raise SystemExit(4)"])
    assert found.capture_call_output(print, "words", end="") == "words"
    assert found.path_in_accelerate_package("utils", "__init__.py").exists()


@pytest.mark.parametrize(
    ("need", "met"),
    [("fsdp2", True), ("non_xla_device", None), ("pytest", True), ("clearml_or_pytest", True), ("multi_gpu", False)],
)
def test_a_decorator_is_made_of_its_name(need: str, met: bool | None) -> None:
    if met is None:
        with pytest.raises(AttributeError, match="is_xla_device_available"):
            getattr(found, f"require_{need}")
        return
    skipped = getattr(getattr(found, f"require_{need}")(lambda: None), "__unittest_skip__", False)
    assert skipped == (not met)


def test_an_old_torch_is_named() -> None:
    assert found.require_torch_min_version(version="1.0")(test_an_old_torch_is_named) is test_an_old_torch_is_named
    assert found.require_torch_min_version(lambda: None, version="99").__unittest_skip__
