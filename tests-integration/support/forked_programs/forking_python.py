"""A stand-in for `python` that a test hands to the programs that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self, final

from accel_testing.time_limits import stretched

from forked_programs import stub

#: seconds in which the server has to have imported all modules, and to have ended
STARTS_WITHIN_S, ENDS_WITHIN_S = 90.0, 5.0


@final
class ForkingPython:
    """A path that can be started in place of `sys.executable`, while this object is open.

    A program that is started by it is forked from a server that has imported torch, so that its start costs
    milliseconds. The stub that was started lives as long as the program: it passes signals on to it and ends as it
    does, and the program dies with the stub.

    Args:
        preload: Modules that the server imports as well.
        within: Words before the command of the server, such as those that enter a namespace. Stubs have to be started
            there too.

    Raises:
        RuntimeError: The server does not start.
    """

    def __init__(self, preload: Sequence[str] = (), *, within: Sequence[str] = ()) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        bare = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
        ask = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
        path = json.loads(subprocess.run(ask, env=bare, stdout=subprocess.PIPE, check=True, text=True).stdout)
        ours = str(Path(__file__).resolve().parents[1])
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in [*sys.path, ours]))
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="accel-testing-")))
            self.executable = str(_write_stub(folder))
            told = json.dumps([str(folder), path, list(preload)])
            log = stack.enter_context(open(folder / "log", "w+b"))
            self._server = subprocess.Popen(
                [*within, sys.executable, "-m", "forked_programs.server", told],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_end, self._server)
            _wait_for_start(self._server, folder)
            self._stack = stack.pop_all()

    def __fspath__(self) -> str:
        """Return the path, so that the object itself can be started."""
        return self.executable

    @property
    def server(self) -> int:
        """The process id of the server."""
        return self._server.pid

    def close(self) -> None:
        """End the server and all programs that it has forked, and remove the stub."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_stub(folder: Path) -> Path:
    """Write the program that stands in for Python, with a short path in the line that names its interpreter."""
    (folder / "interpreter").symlink_to(os.path.realpath(sys.executable))
    stub_file = folder / "python"
    stub_file.write_text(f"#!{folder / 'interpreter'} -IS\n{Path(stub.__file__).read_text('utf-8')}", "utf-8")
    stub_file.chmod(0o700)
    return stub_file


def _wait_for_start(server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + stretched(STARTS_WITHIN_S)
    while not (folder / "ready").exists():
        if server.poll() is not None or time.monotonic() > deadline:
            text = (folder / "log").read_text("utf-8", errors="replace")
            raise RuntimeError(f"the server of forked programs did not start:\n{text}")
        time.sleep(0.02)


def _end(server: subprocess.Popen[bytes]) -> None:
    """Close the standard input of the server, which ends it, and kill a server that does not end."""
    if server.stdin is not None:
        server.stdin.close()
    try:
        server.wait(stretched(ENDS_WITHIN_S))
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
