"""A run that is late is ended, and its launcher ends what it has."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from accel_chaos import session
from accel_chaos.injection import RAISED
from accel_chaos.session import ScriptRun
from accel_launch.cli.launch_command import resolve_options


class Launcher:
    """A launcher that hears of signals, and does not end."""

    pid, exitcode = 1, None

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def start(self) -> None: ...

    def join(self, seconds: float) -> None: ...

    def terminate(self) -> None:
        self.calls.append("SIGTERM")

    def kill(self) -> None:
        self.calls.append("SIGKILL")


def test_a_late_launcher_is_asked_twice_before_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes may save for half a minute; asked again it kills them, and removes its checkpoints in memory."""
    calls: list[str] = []
    (tmp_path / RAISED).touch()
    monkeypatch.setattr(session, "get_context", lambda _: SimpleNamespace(Process=lambda **_: Launcher(calls)))
    run = ScriptRun(tmp_path, resolve_options(["train.py"], {}), 2, None, deadline=0.0)
    run._launch()
    assert calls == ["SIGTERM", "SIGTERM", "SIGKILL"]
