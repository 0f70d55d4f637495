"""Launchers of two machines that somebody ends while they wait for each other: both leave with words and a code."""

import os
import signal
import subprocess
import time

import pytest
from jobs import Job
from namespaces import Machines, ends
from suite.soak import in_soak

# these know nothing of torch: rank 0 is on the first machine, rank 1 on the second
PLAIN = """\
import os, signal, sys, time
rank = int(os.environ["RANK"])
"""


# rank 1 saves for so long once it is asked to end; rank 0 has ended by then
SAVES = """
if rank == 0: sys.exit(0)
def save(*about):
    open("saves", "w").close()
    time.sleep(SECONDS)
    open("saved", "w").close()
    os._exit(CODE)
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, *in_soak(signal.SIGINT)])
def test_a_signal_after_this_machines_ranks_lets_the_other_save(number: signal.Signals, machines: Machines) -> None:
    """Longer than what is left of the others has after a failure."""
    jobs = machines.start_both("-n", 2, "--max_restarts", 2, machines.script(PLAIN + saves(5, 0)))
    machines.wait_for((machines.folder / "ready").exists)
    time.sleep(0.5)  # rank 0 has ended
    jobs[0].process.send_signal(number)
    zero, one = ends(jobs)
    assert zero.code == one.code == 128 + number, zero.err + one.err
    assert f"ended by {number.name} from outside, while this launcher waited for machine 1, node2" in zero.err
    assert zero.err.count("\n") == 1, zero.err
    assert f"accel: on machine 0, node1:\n  the job was ended there by {number.name} from outside" in one.err
    assert "the machine is gone" not in one.err
    assert (machines.folder / "saved").exists(), one.err


def test_a_machine_that_saves_as_another_was_ended_stopped_on_request(machines: Machines) -> None:
    jobs = machines.start_both("-n", 2, machines.script(PLAIN + saves(0, 75)))
    machines.wait_for((machines.folder / "ready").exists)
    time.sleep(0.5)  # rank 0 has ended
    jobs[0].process.send_signal(signal.SIGTERM)
    zero, one = ends(jobs)
    assert (zero.code, one.code) == (143, 75), zero.err + one.err
    assert "was asked to stop" in one.err


@pytest.mark.parametrize("number", [signal.SIGTERM, *in_soak(signal.SIGINT)])
def test_a_launcher_that_waits_for_the_other_machine_leaves_with_words(
    number: signal.Signals, machines: Machines
) -> None:
    job = machines.start(0, *machines.place(0), "-n", 2, machines.script(PLAIN + ""))
    machines.wait_for(lambda: listens(machines))
    job.process.send_signal(number)
    done = job.end()
    assert done.code == 128 + number
    words = "while this launcher waited for machine 1 of 2 to come"
    assert done.err == f"accel: the job was ended by {number.name} from outside, {words}\n"


def saves(seconds: int, code: int) -> str:
    return SAVES.replace("SECONDS", str(seconds)).replace("CODE", str(code))


def listens(machines: Machines) -> bool:
    """Whether machine 0 can be met."""
    said = subprocess.run(
        machines.nodes[0].command("cat", "/proc/net/tcp"), capture_output=True, text=True, check=True
    ).stdout
    return f":{29500:04X} 00000000:0000 0A" in said


def test_a_job_ended_on_another_machine_after_a_failure_stays_ended(machines: Machines) -> None:
    """The signal comes while rank 1 is given time to end, since rank 0 has failed."""
    code = """
def stay(*about): open("asked", "w").close()
signal.signal(signal.SIGTERM, stay)
open(f"ready-{rank}", "w").close()
while not os.path.exists(f"ready-{1 - rank}"): time.sleep(0.01)
if rank == 0: sys.exit(7)
while True: time.sleep(1)
"""
    jobs = machines.start_both("-n", 2, "--max_restarts", 3, machines.script(PLAIN + code))
    machines.wait_for((machines.folder / "asked").exists)
    jobs[1].process.send_signal(signal.SIGTERM)
    zero, one = ends(jobs)
    assert (zero.code, one.code) == (7, 7), zero.err + one.err
    assert "starts again" not in zero.err
    assert "rank 0 of 2" in zero.err
    assert "the machine is gone" not in zero.err + one.err


def test_nobody_starts_again_when_a_machine_leaves_in_the_pause(machines: Machines) -> None:
    jobs = machines.start_both("-n", 2, "--max_restarts", 9, machines.script(PLAIN + "sys.exit(7)"))
    # both have come to their pause: a machine that has not is still at the end of the job, whose code is 7
    machines.wait_for(lambda: all("starts again in 2 s" in so_far(job) for job in jobs))
    jobs[1].process.send_signal(signal.SIGTERM)
    zero, one = ends(jobs)
    assert (zero.code, one.code) == (143, 143), zero.err + one.err
    assert "starts again in 4 s" not in zero.err
    assert "on machine 1, node2" in zero.err
    assert "while this launcher waited for all machines to start again" in one.err


def so_far(job: Job) -> str:
    """What a launcher has said until now."""
    return os.pread(job.err.fileno(), 1 << 16, 0).decode()
