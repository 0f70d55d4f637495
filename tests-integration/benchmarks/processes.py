"""Runs a row in fresh processes, so that no row sees what another has loaded, set or left behind."""

from __future__ import annotations

import os
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import torch
import torch.distributed as dist

from benchmarks.measure import Effort, measure
from benchmarks.result import Result
from benchmarks.row import Row, Skipped
from benchmarks.team import Alone, Group, Team

TIMEOUT_S = 900.0


def run(row: Row, effort: Effort, *, timeout_s: float = TIMEOUT_S) -> Result:
    """The result of a row, measured by as many new processes as it asks for; what goes wrong there is in the result."""
    context = get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    with TemporaryDirectory() as folder:
        ranks: list[BaseProcess] = [
            context.Process(target=_serve, args=(row, rank, effort, Path(folder) / "store", send))
            for rank in range(row.world)
        ]
        for process in ranks:
            process.start()
        send.close()  # so that the end of the ranks is the end of the pipe
        try:
            return _first_answer(row, receive, ranks, timeout_s)
        finally:
            for process in ranks:
                process.join(timeout=10)
                if process.is_alive():
                    process.kill()
                    process.join()


def report(row: Row, rank: int, team: Team, effort: Effort) -> Result | None:
    """What rank 0 has measured; None on other ranks.

    Collective: every rank of the team must call.
    """
    try:
        lineup = row.build()
    except Skipped as why:
        return Result(row.name, row.target, row.unit, skipped=str(why)) if rank == 0 else None
    samples = measure(row, lineup, team, effort)
    return Result.of(row, lineup, samples) if rank == 0 else None


def _serve(row: Row, rank: int, effort: Effort, store: Path, answer: Connection) -> None:
    torch.set_num_threads(1)
    set_start_method(None, force=True)  # else loader workers are spawned because this process was
    try:
        if row.world > 1:
            # torchrun's names: that is how accel and Accelerate learn of the group that is there already
            named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": row.world, "LOCAL_WORLD_SIZE": row.world}
            os.environ.update({name: str(value) for name, value in named.items()})
            os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})  # named, and not used
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=row.world)
        team = Group() if row.world > 1 else Alone()
        found = report(row, rank, team, effort)
        if found is not None:
            answer.send(found)
        team.barrier()
    except Exception as error:
        answer.send(Result(row.name, row.target, row.unit, failure=f"rank {rank}: {type(error).__name__}: {error}"))
        raise
    finally:
        answer.close()
    if row.world > 1:
        dist.destroy_process_group()


def _first_answer(row: Row, receive: Connection, ranks: list[BaseProcess], timeout_s: float) -> Result:
    """The first result to arrive; a failure where none can any more."""
    until = monotonic() + timeout_s
    wait([receive], timeout=max(0.0, until - monotonic()))
    try:
        if receive.poll():
            result: Result = receive.recv()
            if result.failure is not None:
                _kill(ranks)  # the others wait for it
            return result
        _kill(ranks)
        return Result(row.name, row.target, row.unit, failure=f"no result after {timeout_s:.0f} s")
    except EOFError:
        codes = [process.exitcode for process in ranks]
        return Result(row.name, row.target, row.unit, failure=f"the processes ended without a result: {codes}")


def _kill(ranks: list[BaseProcess]) -> None:
    for process in ranks:
        process.kill()
