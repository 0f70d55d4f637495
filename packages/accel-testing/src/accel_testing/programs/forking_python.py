"""A stand-in for `python` that a test hands to what it starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self, final

from accel_testing.programs import stub

STARTS_WITHIN_S = 120.0


@final
class ForkingPython:
    """A path that can be started in place of `sys.executable`, while this object is open.

    A program that is started by it is forked from a server that has imported torch and the modules of `preload`, so
    that its start costs milliseconds. The stub that was started lives as long as the program: it passes signals on to
    it and ends as it does, and dies with it. `within` are words before the command of the server, such as those that
    enter a namespace: stubs have to be started there too.

    Raises: RuntimeError if the server does not start.
    """

    def __init__(self, preload: Sequence[str] = (), *, within: Sequence[str] = ()) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="accel-testing-"))
        self.executable = str(self._folder / "python")
        (self._folder / "interpreter").symlink_to(os.path.realpath(sys.executable))
        source = Path(stub.__file__).read_text("utf-8")
        Path(self.executable).write_text(f"#!{self._folder / 'interpreter'} -IS\n{source}", "utf-8")
        os.chmod(self.executable, 0o700)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        bare = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
        ask = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
        path = json.loads(subprocess.run(ask, env=bare, stdout=subprocess.PIPE, check=True, text=True).stdout)
        ours = str(Path(__file__).resolve().parents[2])
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in [*sys.path, ours]))
        code = (
            "import sys; from accel_testing.programs.server import main; main(*__import__('json').loads(sys.argv[1]))"
        )
        told = json.dumps([str(self._folder), path, list(preload)])
        self._log = open(self._folder / "log", "w+b")  # noqa: SIM115 - `close` closes it
        self._server = subprocess.Popen(
            [*within, sys.executable, "-c", code, told],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not (self._folder / "ready").exists():
            if self._server.poll() is not None or time.monotonic() > deadline:
                text = (self._folder / "log").read_text("utf-8", errors="replace")
                raise RuntimeError(f"the server of forked programs did not start:\n{text}")
            time.sleep(0.02)

    @property
    def server(self) -> int:
        """The process id of the server."""
        return self._server.pid

    def close(self) -> None:
        """End the server and all programs that it has forked, and remove the stub."""
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
