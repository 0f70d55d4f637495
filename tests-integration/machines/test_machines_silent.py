"""Jobs of two machines, one of which stops for a while, or for ever: both logs name it, and the job ends in seconds."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from accel_testing import stretched
from jobs import Job
from namespaces import Machines
from suite.soak import in_soak

#: seconds in which a launcher ends after the other one has stopped, or after it runs again
NAMED_S = stretched(15.0)
#: seconds for which a machine is stopped, if not for ever: others miss it after five to seven
LONG_S = 9.0
#: what stops the launcher of a machine by itself, before its processes start
STOPS = {
    # the first look comes before it has told its place
    "has come": ("node_rendezvous", "NodeRendezvous", "_admitted", "given[2] > given[0]._round"),
    "knows its rank": ("node_workers", "NodeWorkers", "_start", "True"),
}
HOOK = """\
import os, signal
from accel_launch.nodes.MODULE import CLASS
meant = CLASS.METHOD
def stop(*given):
    if CONDITION and not os.path.exists("stopped"):
        open("stopped", "w").close()
        os.kill(os.getpid(), signal.SIGSTOP)
    return meant(*given)
CLASS.METHOD = stop
"""
SLEEPS = """\
import os, time
open(f"here-{os.environ['RANK']}", "w").close()
time.sleep(600)
"""


def started(machines: Machines, number: int, when: str) -> list[Job]:
    """The launchers of both machines, one of which has just stopped."""
    environ: dict[str, str] = {}
    if when in STOPS:
        hook = HOOK
        for word, meant in zip(("MODULE", "CLASS", "METHOD", "CONDITION"), STOPS[when], strict=True):
            hook = hook.replace(word, meant)
        (machines.folder / "sitecustomize.py").write_text(hook)
        environ["PYTHONPATH"] = os.pathsep.join([str(machines.folder), os.environ.get("PYTHONPATH", "")])
    script = machines.script(SLEEPS)
    jobs = []
    for at in (0, 1):
        mine = environ if at == number else {}
        jobs.append(machines.start(at, *machines.place(at), "-n", 2, script, environ=mine))
    if when in STOPS:
        machines.wait_for((machines.folder / "stopped").exists)
        machines.wait_for(lambda: is_stopped(jobs[number]))
    else:
        machines.wait_for(lambda: all((machines.folder / f"here-{rank}").exists() for rank in (0, 1)))
        jobs[number].process.send_signal(signal.SIGSTOP)
    return jobs


def is_stopped(job: Job) -> bool:
    return Path(f"/proc/{job.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def check(machines: Machines, number: int, jobs: list[Job], asleep_s: float | None) -> None:
    """Both launchers name the machine and nobody else, in time; the stopped one when it runs again, if it does."""
    stopped_s = time.monotonic()
    done = [jobs[1 - number].end(NAMED_S)]
    if asleep_s is None:
        jobs[number].process.kill()
        jobs[number].process.wait()
        machines.wait_for(lambda: machines.processes(number) == [])
    else:
        time.sleep(max(0.0, asleep_s - (time.monotonic() - stopped_s)))
        jobs[number].process.send_signal(signal.SIGCONT)
        done.append(jobs[number].end(NAMED_S))
    said = [named(job.err) for job in done]
    assert set(said) == {(number, "nothing was heard of it for 5 s")}, [job.err for job in done]
    assert all(job.code in (1, 2) for job in done), done


def named(words: str) -> tuple[int, str]:
    """The machine at fault, and why, in the last words of a launcher."""
    found = re.search(r"machine (\d), [^:]*(?::\n  the machine)? ?is gone: ([^(\n]*)", words.replace(", is", " is"))
    assert found is not None, words
    return int(found[1]), found[2].strip()


CASES = [
    (0, "runs", LONG_S),
    *in_soak((0, "runs", 20.0), (0, "runs", None), (0, "has come", 20.0), (0, "has come", None)),
    *in_soak((0, "knows its rank", 20.0), (0, "knows its rank", None)),
    *in_soak((1, "runs", 20.0), (1, "runs", None), (1, "has come", 20.0), (1, "has come", None)),
    (1, "knows its rank", LONG_S),
    *in_soak((1, "knows its rank", 20.0), (1, "knows its rank", None)),
]


@pytest.mark.parametrize("run", [0, *in_soak(*range(1, 10))])
@pytest.mark.parametrize("case", CASES)
def test_a_machine_that_is_silent_is_named_on_both(
    case: tuple[int, str, float | None], run: int, machines: Machines
) -> None:
    number, when, asleep_s = case
    check(machines, number, started(machines, number, when), asleep_s)
