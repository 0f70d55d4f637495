"""One progress bar for all processes."""

import io
import logging
import sys
from typing import Any

import accel
import accel.utils
import pytest
from accel import Accelerator, PartialState
from accel.logging import get_logger
from accel_testing import MakePool


def bars() -> tuple[bool, bool, bool, list[int]]:
    PartialState(cpu=True)
    shown = accel.tqdm(range(3), file=io.StringIO())
    everywhere = accel.tqdm(range(3), file=io.StringIO(), main_process_only=False)
    never = accel.tqdm(total=3, disable=True)
    return shown.disable, everywhere.disable, never.disable, list(shown)


def test_one_process_shows_the_bar(world: MakePool) -> None:
    assert world(1).run(bars) == [(False, False, True, [0, 1, 2])]
    assert world(2).run(bars) == [(False, False, True, [0, 1, 2]), (True, False, True, [0, 1, 2])]


def printed() -> str:
    PartialState(cpu=True)
    file = io.StringIO()
    with accel.utils.tqdm(total=2, desc="two steps", file=file) as bar:
        bar.update(2)
    return file.getvalue()


def test_the_bar_says_what_tqdm_says(world: MakePool) -> None:
    first, second = world(2).run(printed)
    assert "two steps: 100%" in first
    assert second == ""


def test_a_missing_tqdm_has_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="not installed: pip install tqdm"):
        accel.tqdm([])


class Around(logging.LoggerAdapter[Any]):
    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        self.logger.log(level, msg, *args, **kwargs, stacklevel=3)


def test_a_line_of_the_log_names_the_code_that_calls(caplog: pytest.LogCaptureFixture) -> None:
    """A `stacklevel` counts the method of the logger too, as scripts for Accelerate do."""
    Accelerator(cpu=True)
    logger = get_logger("one")
    logger.warning("a")
    logger.warning_once("b")
    Around(logger, {}).warning("c")
    assert {(record.message, record.funcName) for record in caplog.records} == {
        (word, test_a_line_of_the_log_names_the_code_that_calls.__name__) for word in "abc"
    }
