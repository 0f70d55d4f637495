"""Run a function in several worker processes at once."""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, final

from accel_testing.failure import RankFailure
from accel_testing.message import Done, Failed, name_of, pack_call, unpack_error
from accel_testing.server import fork_server
from accel_testing.time_limits import stretched
from accel_testing.worker_handle import Died, WorkerHandle, collect, stacks, stop_all
from accel_testing.worker_spec import WorkerSpec, environment

T = TypeVar("T")

GRACE_S = 2.0
"""Seconds that the other ranks have after the first failure, and all ranks at the end, times the factor."""


class MakePool(Protocol):
    """The type of the fixture `world`."""

    def __call__(self, size: int, *, join: bool = True) -> ProcessPool:
        """Return a fresh pool of `size` workers, closed when the test ends."""


@final
class ProcessPool:
    """A pool of worker processes, forked from a server that has imported torch.

    Args:
        size: Number of workers.
        join: Whether they are joined in a process group, by gloo.
        preload: Modules that the server imports as well. Only the first pool of a session decides, as it starts the
            server.
    """

    def __init__(self, size: int, *, join: bool = True, preload: Sequence[str] = ()) -> None:
        if size < 1:
            raise ValueError(f"a pool of {size} workers: expected 1 or more")
        self.size = size
        self._spent: str | None = None
        self._handles: list[WorkerHandle] = []
        self._folder = Path(tempfile.mkdtemp(prefix="accel-testing-"))
        # multiprocessing waits at exit for processes that are not daemons: a forgotten pool must not hang the session
        atexit.register(self.close)
        (self._folder / "store").mkdir()
        context = fork_server(preload)
        try:
            for rank in range(size):
                environ = environment(rank, size, self._folder, join=join, inherited=os.environ)
                self._handles.append(WorkerHandle(WorkerSpec(rank, size, self._folder, join, environ), context))
        except BaseException:
            self._kill("its start was interrupted")
            self.close()
            raise

    def run(self, function: Callable[..., T], *args: Any, timeout_s: float = 60) -> list[T]:
        """Call a function on every rank, and return the results in rank order.

        Args:
            function: Function at the top level of a module or a test file.
            args: Arguments, which are pickled.
            timeout_s: Seconds until a rank is late, times ACCEL_TESTING_TIME_FACTOR.

        Raises:
            RankFailure: A rank did not join, raised, died or was late. The workers are killed, and the pool runs
                nothing more.
            NotSendable: The function or an argument does not pickle.
            RuntimeError: The pool is closed, or an earlier run has failed.
        """
        __tracebackhide__ = True
        timeout_s, grace_s = stretched(timeout_s), stretched(GRACE_S)
        if self._spent is not None:
            raise RuntimeError(f"this pool of {self.size} runs nothing more: {self._spent}; ask for a fresh one")
        call = pack_call(function, args)
        answers: Mapping[int, Done | Failed | Died] = {}
        try:
            for handle in self._handles:
                handle.send(call)
            answers = collect(self._handles, timeout_s=timeout_s, grace_s=grace_s)
        except BaseException:
            self._kill("a run was interrupted")
            raise
        results, errors, parts = _sorted_out(answers)
        late = [handle for handle in self._handles if handle.spec.rank not in answers]
        if not errors and not late:
            return [results[rank] for rank in range(self.size)]
        why = f"was still running {grace_s:g} s after another rank failed" if errors else f"was late ({timeout_s:g} s)"
        if not errors:
            errors = {handle.spec.rank: TimeoutError(f"rank {handle.spec.rank} {why}") for handle in late}
        parts += [(rank, f"{why}; its stacks", text) for rank, text in stacks(late).items()]
        self._kill("a rank failed or was late")
        head = f"{name_of(function)} on {self.size} ranks: rank {', '.join(map(str, sorted(errors)))} failed"
        raise RankFailure(_text(head, parts, self._handles), errors)

    def output(self, rank: int) -> str:
        """Return the output of a rank until now, stdout and stderr together.

        Raises:
            ValueError: The pool has no such rank.
            RuntimeError: The pool is closed.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"output of rank {rank}: this pool has ranks 0 to {self.size - 1}")
        if not self._handles:
            raise RuntimeError(f"output of rank {rank}: this pool is closed; ask before that")
        return self._handles[rank].output()

    def close(self) -> None:
        """End the workers, and remove the temporary folder. A second call does nothing."""
        atexit.unregister(self.close)
        if self._spent is None:
            self._spent = "it is closed"
            stop_all(self._handles, within_s=stretched(GRACE_S))
        for handle in self._handles:
            handle.close()
        self._handles = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self, why: str) -> None:
        self._spent = why
        for handle in self._handles:
            handle.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Part = tuple[int, str, str]


def _sorted_out(
    answers: Mapping[int, Done | Failed | Died],
) -> tuple[dict[int, Any], dict[int, BaseException], list[_Part]]:
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    parts: list[_Part] = []
    for rank, answer in sorted(answers.items()):
        if isinstance(answer, Died):
            errors[rank] = ChildProcessError(f"rank {rank} died: {answer.how}")
            parts.append((rank, f"died: {answer.how}", ""))
        elif isinstance(answer, Failed):
            errors[rank] = unpack_error(answer)
            parts.append((rank, f"raised {type(errors[rank]).__name__}", answer.text))
        else:
            try:
                results[rank] = pickle.loads(answer.body)
            except Exception as error:  # noqa: BLE001 - pickle runs the result's own code
                errors[rank] = error
                parts.append((rank, f"sent a result that does not unpickle: {type(error).__name__}: {error}", ""))
    return results, errors, parts


def _text(head: str, parts: Sequence[_Part], handles: Sequence[WorkerHandle]) -> str:
    lines = [head]
    for rank, title, text in parts:
        lines += [f"--- rank {rank} {title} ---", *text.rstrip().splitlines()]
    for handle in handles:
        if printed := handle.output().rstrip():
            lines += [f"--- rank {handle.spec.rank} printed ---", *printed.splitlines()]
    return "\n".join(lines)
