"""T1, T5: jobs are killed by SIGKILL at any moment, go on in new processes, and serve what the unbroken job serves."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import serve
import torch.distributed as dist
from accel_comm import Transport
from accel_comm.transports.single import Single
from accel_comm.transports.torch_dist import TorchDist
from accel_testing import MakePool, RankFailure, stretched
from accel_verify.consumption_log import verify
from suite.soak import Cases, in_soak

SCRIPT = Path(serve.__file__)
Served = list[list[int]]


def life(folder: str, kind: str, workers: int, killed: int, after_s: float | None) -> Served:
    """Serves in a worker of a world, whose rank `killed` is killed after a while."""
    transport: Transport = TorchDist() if dist.is_initialized() else Single()
    if after_s is not None and transport.rank == killed:
        timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    return serve.serve(Path(folder), kind, workers, transport)


def unbroken(world: MakePool, folder: Path, kind: str, workers: int) -> Served:
    folder.mkdir()
    (served,) = world(1, join=False).run(life, str(folder), kind, workers, 0, None)
    return served


def check_consumption_log(folder: Path, kind: str) -> None:
    if "shards" not in kind:
        epochs = verify(folder / "served")
        assert [(one.epoch, one.complete) for one in epochs] == [(epoch, True) for epoch in range(serve.EPOCHS)]


def served_by_lives(
    world: MakePool, folder: Path, kind: str, workers: int, sizes: list[int], chance: random.Random
) -> tuple[Served, int]:
    """What a job has served in the end, after one life with each of these worlds at most, and how many were killed."""
    folder.mkdir()
    kills = 0
    for size in sizes:
        job = world(size, join=size > 1)
        try:
            served, *_ = job.run(life, str(folder), kind, workers, chance.randrange(size), chance.uniform(0.02, 0.15))
        except RankFailure as failure:
            if "SIGKILL" not in str(failure):
                raise
            kills += 1
        else:
            return served, kills
    (served,) = world(1, join=False).run(life, str(folder), kind, workers, 0, None)
    return served, kills


@pytest.mark.soak
@pytest.mark.parametrize("kind", serve.KINDS)
def test_a_killed_job_serves_what_was_due(kind: str, world: MakePool, tmp_path: Path, cases: Cases) -> None:
    """T1, T5, fault tests 20 and 21: one, two or four processes, killed again and again."""
    wanted = cases(2, 100)
    chance = random.Random(f"{kind} {wanted.start}")
    whole = unbroken(world, tmp_path / "whole", kind, 0)
    seen = sorted(one for step in whole for one in step)
    assert kind == "weighted" or seen == sorted([*range(serve.SAMPLES)] * serve.EPOCHS)
    kills, jobs = 0, 0
    while kills < len(wanted):
        folder, jobs = tmp_path / str(jobs), jobs + 1
        sizes = [1] * 3 if kind == "buckets" else [2, 1, 4]
        served, more = served_by_lives(world, folder, kind, 0, sizes, chance)
        assert served == whole
        check_consumption_log(folder, kind)
        kills += more


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["shuffled", "shards", *in_soak("stateful")])
def test_loader_workers_of_a_killed_job_lose_nothing(kind: str, world: MakePool, tmp_path: Path, cases: Cases) -> None:
    wanted = cases(2, 50)
    chance = random.Random(f"{kind} {wanted.start}")
    whole = unbroken(world, tmp_path / "whole", kind, 2)
    kills, jobs = 0, 0
    while kills < len(wanted):
        folder, jobs = tmp_path / str(jobs), jobs + 1
        served, more = served_by_lives(world, folder, kind, 2, [1] * 2, chance)
        assert served == whole
        check_consumption_log(folder, kind)
        kills += more


def started(folder: Path, size: int, number: int) -> list[subprocess.Popen[bytes]]:
    command = [sys.executable, str(SCRIPT), str(folder), "shuffled", "0"]
    places = [[str(folder / f"store-{number}"), str(rank), str(size)] for rank in range(size)] if size > 1 else [[]]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return [subprocess.Popen([*command, *place], stderr=subprocess.DEVNULL, env=environ) for place in places]


def test_a_killed_script_serves_what_was_due(world: MakePool, tmp_path: Path) -> None:
    """Processes of their own, without any fixture: two, then one."""
    whole = unbroken(world, tmp_path / "whole", "shuffled", 0)
    folder = tmp_path / "killed"
    folder.mkdir()
    path = folder / "committed"
    processes = started(folder, 2, 0)
    try:
        while not serve.committed(path)[0]:
            assert all(process.poll() is None for process in processes), "it ended by itself"
            time.sleep(0.002)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
    assert 0 < len(serve.committed(path)[0]) < len(whole)
    for process in started(folder, 1, 1):
        assert process.wait(stretched(60)) == 0
    assert serve.committed(path)[0] == whole
    check_consumption_log(folder, "shuffled")
