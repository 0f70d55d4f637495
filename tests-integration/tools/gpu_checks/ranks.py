"""Runs functions on several ranks of one machine, each a process of its own."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, NamedTuple

Job = Callable[..., Any]
#: seconds that the other ranks have after the first failure
GRACE_S = 5.0


class Answer(NamedTuple):
    """What a job returned on a rank, or in which words it failed there."""

    result: Any = None
    failure: str | None = None


def on_ranks(jobs: Sequence[Job], *arguments: Any, size: int = 2, timeout_s: float = 60) -> Mapping[str, list[Answer]]:
    """The answers of each rank to each job, by the name of the job; all jobs after a failure are left out.

    A rank that has not answered a job `timeout_s` seconds after the job before has failed it.
    """
    context = get_context("spawn")
    port = _free_port()
    receivers: list[Connection] = []
    processes = []
    for rank in range(size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(rank, size, port, jobs, arguments, sender), daemon=True)
        process.start()
        sender.close()  # so that the end of the rank is the end of the pipe
        receivers.append(receiver)
        processes.append(process)
    try:
        answers = dict[str, list[Answer]]()
        for job in jobs:
            answers[job.__name__] = _answers(receivers, timeout_s)
            if any(answer.failure is not None for answer in answers[job.__name__]):
                break
        else:
            for process in processes:
                process.join(timeout=10)
        return answers
    finally:
        for process in processes:
            process.kill()
            process.join()


def _answers(receivers: Sequence[Connection], timeout_s: float) -> list[Answer]:
    answers: dict[int, Answer] = {}
    began = monotonic()
    until = began + timeout_s
    while len(answers) < len(receivers):
        open_ones = {receiver: rank for rank, receiver in enumerate(receivers) if rank not in answers}
        ready = wait(list(open_ones), timeout=max(0.0, until - monotonic()))
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                answers[open_ones[receiver]] = receiver.recv()
            except EOFError:
                answers[open_ones[receiver]] = Answer(failure="the process ended without an answer")
        if not ready:
            late = Answer(failure=f"no answer after {monotonic() - began:.0f} s")
            answers |= dict.fromkeys(open_ones.values(), late)
        elif any(answer.failure is not None for answer in answers.values()):
            until = min(until, monotonic() + GRACE_S)  # the others wait for it, or fail too
    return [answers[rank] for rank in range(len(receivers))]


def _serve(rank: int, size: int, port: int, jobs: Sequence[Job], arguments: Sequence[Any], answers: Connection) -> None:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    for job in jobs:
        try:
            answer = Answer(job(*arguments))
        except Exception as error:  # noqa: BLE001 - a job may fail in any way
            trail = "".join(traceback.format_tb(error.__traceback__)[-4:])
            answer = Answer(failure=f"{type(error).__name__}: {error}\n{trail}")
        answers.send(answer)
        if answer.failure is not None:
            break


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
