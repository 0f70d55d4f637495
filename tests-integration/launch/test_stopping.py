"""T9: a signal to the launcher or to any rank stops all ranks after one step, with a checkpoint, and exit code 75."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import restart
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_state.environ import FLIGHT_RECORDER
from accel_testing import MakePool, RankFailure, stretched
from jobs import ACCEL, SOON_S, Ended, Job, marked, start
from restart import Plan
from suite.soak import Cases, in_soak

SCRIPT = Path(restart.__file__)
STOPPED = 75
STEPS = restart.EPOCHS * -(-restart.SAMPLES // restart.BATCH)
Send = Callable[[Job], None]


def ranks_of(job: Job) -> list[int]:
    """The processes of the ranks: children of the launcher, but for its guard, which has its command line."""
    found = []
    for pid in marked(job.mark):
        guards = b"\0launch\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        if not guards and f"\nPPid:\t{job.process.pid}\n" in Path(f"/proc/{pid}/status").read_text():
            found.append(pid)
    return sorted(found)


def wait_for(path: Path, job: Job, least: int = 1) -> None:
    until = time.monotonic() + stretched(60)
    while not path.exists() or int(path.read_text() or 0) < least:
        assert job.process.poll() is None, job.end().err
        assert time.monotonic() < until, job.end(1).err
        time.sleep(0.01)


def started(plan: Plan, python: str, grace_s: int = 300) -> Job:
    """A job of a real launcher, whose ranks are run by `python`; it may take longer to stop than any save takes."""
    by = [*ACCEL[:-1], "--no_python", "--grace_period", str(grace_s), ACCEL[-1]]
    return start(Path(python), SCRIPT, json.dumps(asdict(plan)), by=by)


def stopped(plan: Plan, python: str, send: Send, after_s: float = 0.0, least: int = 1) -> Ended:
    """The end of a job that is told to stop after its first steps."""
    folder = Path(plan.folder)
    folder.mkdir(exist_ok=True)
    job = started(plan, python)
    wait_for(folder / "at-0", job, least)
    time.sleep(after_s)
    send(job)
    return job.end()


def to_launcher(number: signal.Signals) -> Send:
    return lambda job: job.process.send_signal(number)


def to_a_rank(number: signal.Signals, rank: int) -> Send:
    return lambda job: os.kill(ranks_of(job)[rank], number)


def to_all(number: signal.Signals) -> Send:
    """As timeout, systemd and job steps do: each rank hears it again from the launcher."""

    def send(job: Job) -> None:
        for pid in (job.process.pid, *ranks_of(job)):
            os.kill(pid, number)

    return send


KINDS = {
    "SIGTERM to all at once": to_all(signal.SIGTERM),
    "SIGUSR1 to all at once": to_all(signal.SIGUSR1),
    "SIGTERM to the launcher": to_launcher(signal.SIGTERM),
    "SIGUSR1 to one rank": to_a_rank(signal.SIGUSR1, 1),
    "SIGINT to the launcher": to_launcher(signal.SIGINT),
    "SIGUSR1 to the launcher": to_launcher(signal.SIGUSR1),
    "SIGTERM to one rank": to_a_rank(signal.SIGTERM, 0),
    "SIGINT to one rank": to_a_rank(signal.SIGINT, 1),
}


@pytest.mark.soak
def test_all_ranks_stop_after_the_same_step_and_the_job_goes_on_from_it(
    world: MakePool, forking_python: str, tmp_path: Path, cases: Cases
) -> None:
    """T9, fault test 27: 2 jobs in the suite, 50 in a soak; two ranks with two loader workers each."""
    plan = Plan("", every=1000, epochs=3, asks=True, pause_s=0.05, signals=("SIGTERM", "SIGUSR1", "SIGINT"))
    (tmp_path / "whole").mkdir()
    whole = world(2).run(restart.train, replace(plan, folder=str(tmp_path / "whole"), asks=False, pause_s=0.0))
    for number in cases(2, 50):
        chance = random.Random(number)
        kind = list(KINDS)[number % len(KINDS)]
        folder = tmp_path / str(number)
        done = stopped(replace(plan, folder=str(folder)), forking_python, KINDS[kind], chance.uniform(0, 0.4))
        assert done.code == STOPPED, (kind, done.err)
        assert done.left() == [], kind
        assert "run the same command again to go on" in done.err
        assert "Traceback" not in done.err, done.err
        at = {int((folder / f"stopped-{rank}").read_text()) for rank in range(2)}
        assert len(at) == 1, (kind, at)
        assert [one.name for one in (folder / "checkpoints").iterdir()] == ["checkpoint_0"]
        found = world(2).run(restart.train, replace(plan, folder=str(folder), pause_s=0.0))
        assert {one.began for one in found} == at
        assert [one.digest for one in found] == [one.digest for one in whole], kind


def twice(job: Job) -> None:
    job.process.send_signal(signal.SIGTERM)
    time.sleep(1.5)  # within a second it would be an echo of the first one
    job.process.send_signal(signal.SIGTERM)


def test_a_second_signal_ends_the_job_at_once(forking_python: str, tmp_path: Path) -> None:
    """T9: one that does not get to its next step is not waited for."""
    plan = Plan(str(tmp_path), workers=0, asks=True, pause_s=30, signals=("SIGTERM",))
    done = stopped(plan, forking_python, twice)
    assert done.code == 128 + signal.SIGTERM, done.err
    assert done.left() == []
    assert not (tmp_path / "stopped-0").exists()


@pytest.mark.parametrize("grace_s", [1, *in_soak(3)])
def test_the_time_to_stop_is_the_one_that_was_asked_for(grace_s: int, forking_python: str, tmp_path: Path) -> None:
    """T9: a job that does not get to its next step has that long, and is killed then."""
    plan = Plan(str(tmp_path), workers=0, asks=True, pause_s=10, signals=("SIGTERM",))
    job = started(plan, forking_python, grace_s)
    wait_for(tmp_path / "at-0", job)
    time.sleep(1)  # it is in its next step
    ranks = ranks_of(job)
    assert len(ranks) == 2
    told = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    while set(ranks) & set(marked(job.mark)):
        assert time.monotonic() - told < grace_s + SOON_S
        time.sleep(0.01)
    assert time.monotonic() - told >= grace_s
    done = job.end()
    assert done.code == 128 + signal.SIGTERM, done.err
    assert f"had not ended {grace_s} s later, and had to be killed: rank 0, 1" in done.err
    assert done.left() == []


def told_twice(number: int) -> None:
    accelerator = Accelerator(cpu=True, project_config=ProjectConfiguration(stop_signals=("SIGTERM", "SIGINT")))
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)  # as a launcher passes it on
    assert accelerator.stop_requested()
    time.sleep(1.1)
    os.kill(os.getpid(), number)
    time.sleep(10)


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_second_signal_does_what_it_did_before(number: int, said: str, world: MakePool) -> None:
    with pytest.raises(RankFailure, match=said):
        world(1, join=False).run(told_twice, number)


def test_a_signal_that_is_not_noted_ends_the_job_as_before(forking_python: str, tmp_path: Path) -> None:
    """SIGINT is a keyboard interrupt unless the configuration names it."""
    done = stopped(Plan(str(tmp_path), asks=True, pause_s=0.02), forking_python, to_launcher(signal.SIGINT), least=2)
    assert done.code == 128 + signal.SIGINT, done.err
    assert done.left() == []
    assert not (tmp_path / "stopped-0").exists()


def told_in_a_group(folder: str, signals: tuple[str, ...], watched: bool, epochs: int) -> str:
    """What becomes of a process that is told to stop by SIGTERM, with its loader workers if they are shielded."""
    if watched:  # as the launcher says
        os.environ[FLIGHT_RECORDER] = folder
    assert os.getpgid(0) == os.getpid(), "its group is that of the test"
    plan = Plan(folder, every=1000, epochs=epochs, asks=True, signals=signals)
    write_text, told = Path.write_text, False

    def noticed(path: Path, text: str) -> int:
        nonlocal told
        if path.name == "at-0" and int(text) == 3 and not told:
            told = True
            # by somebody else: a worker that its own process tells to end does so quietly
            told_ones = -os.getpid() if signals or watched else os.getpid()
            subprocess.run(["sh", "-c", f"trap '' TERM; kill -TERM {told_ones}"], check=True)
            time.sleep(0.5)
        return write_text(path, text)

    Path.write_text = noticed  # type: ignore[assignment,method-assign] # a stand-in
    try:
        return f"ended after {restart.train(plan).steps}"
    except SystemExit as left:
        return f"exit code {left.code}"


@pytest.mark.parametrize(("signals", "watched"), [(("SIGTERM",), False), ((), False), ((), True)])
def test_loader_workers_outlive_a_signal_to_the_whole_group(
    signals: tuple[str, ...], watched: bool, world: MakePool, tmp_path: Path
) -> None:
    """T9: shielded if signals are named, and in a job of the launcher, whenever `stop_requested` is called first."""
    assert world(1, join=False).run(told_in_a_group, str(tmp_path), signals, watched, 2) == [f"exit code {STOPPED}"]
    assert (tmp_path / "stopped-0").read_text() == "3"
    (found,) = world(1, join=False).run(restart.train, Plan(str(tmp_path)))
    (tmp_path / "whole").mkdir()
    (whole,) = world(1, join=False).run(restart.train, Plan(str(tmp_path / "whole")))
    assert (found.began, found.digest) == (3, whole.digest)


def test_a_stop_whose_checkpoint_cannot_be_written_is_an_error(world: MakePool, tmp_path: Path) -> None:
    """T9: it does not say 75 when there is nothing to go on from."""
    (tmp_path / "checkpoints").write_text("of somebody")
    (tmp_path / "stopped-0").unlink(missing_ok=True)
    with pytest.raises(RankFailure, match="CheckpointError"):
        world(1, join=False).run(told_in_a_group, str(tmp_path), ("SIGTERM",), False, 2)
