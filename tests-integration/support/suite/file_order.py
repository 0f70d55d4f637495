"""The order of test files by the seconds that they took: the dearest first, so that no process is left with one."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import final

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --record-durations, and to the configuration file `recorded_durations`."""
    parser.getgroup("suite").addoption(
        "--record-durations", action="store_true", help="write seconds of test files into the file `recorded_durations`"
    )
    parser.addini(
        "recorded_durations", "JSON with seconds of test files: the file that took longest runs first", "string", ""
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record durations if that was asked for, in the process that hears of all tests.

    Raises: UsageError if they are to be recorded nowhere.
    """
    if not config.getoption("--record-durations") or hasattr(config, "workerinput"):
        return
    if not config.getini("recorded_durations"):
        raise pytest.UsageError("--record-durations: set recorded_durations = FILE in the configuration of pytest")
    config.pluginmanager.register(DurationRecorder(_file_of(config), config.rootpath))


def _file_of(config: pytest.Config) -> Path:
    return config.rootpath / str(config.getini("recorded_durations"))


def _read(file: Path) -> dict[str, float]:
    try:
        seconds = json.loads(file.read_text("utf-8"))
        return {str(name): float(number) for name, number in seconds.items()}
    except (ValueError, TypeError, AttributeError) as error:
        wanted = "JSON with a number of seconds for each test file; --record-durations writes it"
        raise pytest.UsageError(f"recorded_durations: {file} has {error}: expected {wanted}") from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort tests by the seconds of their files; a file without a record counts as the median of the others."""
    if not config.getini("recorded_durations") or not _file_of(config).exists():
        return
    seconds = _read(_file_of(config))
    usual = statistics.median(seconds.values()) if seconds else 0.0

    def cost(item: pytest.Item) -> tuple[float, str]:
        file = item.nodeid.partition("::")[0]
        return -seconds.get(file, usual), file

    items.sort(key=cost)  # stable: the tests of a file keep their order


@final
class DurationRecorder:
    """The seconds of each test file, written when the session has passed."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file, self._root = file, root
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the file, unless a test failed: what failed may have waited for a limit.

        Files that did not run keep their record if they are still there.
        """
        if exitstatus != 0:
            return
        before = _read(self._file) if self._file.exists() else {}
        kept = {file: seconds for file, seconds in before.items() if (self._root / file).exists()}
        now = {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        self._file.write_text(json.dumps(dict(sorted((kept | now).items())), indent=0) + "\n", "utf-8")
