"""Jobs of two machines that may be replaced: what the agents say at their end, and what they import."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Ended
from namespaces import LAUNCH, Machines, Node, ends
from suite.soak import in_soak

BY_TORCH = ("--rdzv_backend", "c10d")
HERE = """\
import os, sys, time
rank = int(os.environ["RANK"])
open(f"here-{rank}", "w").close()
while not (os.path.exists("here-0") and os.path.exists("here-1")):
    time.sleep(0.01)
"""
# in files with names of Python's own that the agent imports, and what ties the script to it
SHADOW = 'print("shadowed by", __name__, flush=True)\nraise SystemExit(9)\n'
SEES = """\
import os, sys
import mine
print("path", sys.path[0], "safe", sys.flags.safe_path, os.environ.get("PYTHONSAFEPATH"), sys.argv[1:], flush=True)
print("level", os.environ.get("TORCH_CPP_LOG_LEVEL"), flush=True)
"""


@pytest.fixture
def machines(nodes: tuple[Node, Node], tmp_path: Path) -> Iterator[Machines]:
    found = Machines(nodes, tmp_path)
    yield found
    found.end()


def met_and_lost(machines: Machines, code: str, number: signal.Signals | None) -> tuple[Ended, Ended]:
    (machines.folder / "script.py").write_text(HERE + code)
    jobs = machines.start_both("-n", 2, *BY_TORCH, "script.py")
    machines.wait_for(lambda: all((machines.folder / f"here-{rank}").exists() for rank in (0, 1)))
    if number is not None:
        jobs[0].process.send_signal(number)
    return ends(jobs, 20)


@pytest.mark.parametrize("number", [None, signal.SIGKILL, *in_soak(signal.SIGTERM)])
def test_the_machine_that_serves_the_others_is_named_when_it_is_gone(
    number: signal.Signals | None, machines: Machines
) -> None:
    fails = "if rank == 0: time.sleep(0.5); sys.exit(7)\n" if number is None else ""
    zero, one = met_and_lost(machines, fails + "time.sleep(60)\n", number)
    assert zero.code == {None: 7, signal.SIGTERM: 143, signal.SIGKILL: -9}[number], zero.err
    assert one.code == (zero.code if zero.code > 0 else 1)
    said = {
        None: "accel: on machine 0, node1:\naccel: rank 0 of 2 (pid ",
        signal.SIGTERM: "accel: on machine 0, node1:\n  the job was ended there by SIGTERM from outside\n",
        signal.SIGKILL: "accel: on machine 0, node1:\n  the machine is gone: ",
    }
    assert said[number] in one.err
    assert "ended here because of it: rank 1" in one.err
    for words in ("cannot meet", "frame #", "[c10d]", "Traceback"):
        assert words not in zero.err + one.err, zero.err + one.err


def test_machines_that_have_never_met_are_told_who_has_to_serve(machines: Machines) -> None:
    (machines.folder / "script.py").write_text("")
    # the last of two equal flags counts
    done = machines.start(1, *machines.place(1), "--join_timeout", 5, "-n", 2, *BY_TORCH, "script.py").end()
    assert done.code == 2
    assert "machine 0 does not answer at 10.77.0.1:29500 (Connection refused; tried for 5 s)" in done.err
    assert "frame #" not in done.err


def test_a_machine_that_does_not_come_is_told_by_its_number(machines: Machines) -> None:
    """On all that have come, which the first one counts."""
    (machines.folder / "script.py").write_text("")
    words = ("--num_machines", 3, "--join_timeout", 8, "-n", 3, *BY_TORCH, "script.py")
    for done in ends([machines.start(at, *machines.place(at), *words) for at in (0, 1)]):
        assert done.code == 2, done.err
        assert "machine 2 of 3 did not come within 8 s; here: machine 0 (node1), 1 (node2 " in done.err, done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_machines_listen_where_they_meet_and_have_the_ranks_that_are_given(backend: str, machines: Machines) -> None:
    """The first machine has the greater address here, and nothing on it listens at any other."""
    waits = 'while not os.path.exists("over"): time.sleep(0.01)\nos.write(1, b"rank %d\\n" % rank)\n'
    (machines.folder / "script.py").write_text(HERE + waits)
    first = machines.nodes[1]
    where = ("--num_machines", 2, "--main_process_ip", first.address, "--rdzv_backend", backend, "-n", 2)
    jobs = [machines.start(at, *where, "--machine_rank", 1 - at, "script.py") for at in (0, 1)]
    machines.wait_for(lambda: all((machines.folder / f"here-{rank}").exists() for rank in (0, 1)))
    sockets = subprocess.run(first.command("cat", "/proc/net/tcp", "/proc/net/tcp6"), capture_output=True, text=True)
    fields = [line.split() for line in sockets.stdout.splitlines()]
    assert {field[1].partition(":")[0] for field in fields if field[3] == "0A"} == {"02004D0A"}, sockets.stdout
    (machines.folder / "over").touch()
    assert [done.out for done in ends(jobs)] == ["rank 1\n", "rank 0\n"]


def test_a_job_goes_on_with_a_lost_machine_that_is_started_again(machines: Machines) -> None:
    waits = 'attempt = os.environ["ACCEL_ATTEMPT"]\nif attempt == "0": time.sleep(600)\nprint("rank", rank, attempt)\n'
    (machines.folder / "script.py").write_text(HERE + waits)
    words = ("-n", 2, "--max_restarts", 1, *BY_TORCH, "script.py")
    zero, one = machines.start_both(*words)
    machines.wait_for(lambda: all((machines.folder / f"here-{rank}").exists() for rank in (0, 1)))
    one.process.kill()
    one.process.wait()
    again = machines.start(1, *machines.place(1), *words)
    both = ends([zero, again])
    for rank, done in enumerate(both):
        assert (done.code, done.out) == (0, f"rank {rank} 1\n"), "\n===\n".join(str(each) for each in both)


@pytest.mark.parametrize("module", [False, *in_soak(True)])
def test_an_agent_takes_no_file_of_its_folder_for_a_module_of_python(module: bool, machines: Machines) -> None:
    """And the script has its search path, and its environment, as without an agent."""
    work = machines.folder
    for name in ("random", "socket", "json", "ctypes"):
        (work / f"{name}.py").write_text(SHADOW)
    beside = work if module else work / "scripts"
    beside.mkdir(exist_ok=True)
    (beside / "sees.py").write_text(SEES)
    (beside / "mine.py").write_text("")
    start = ("--module", "sees") if module else ("scripts/sees.py",)
    # the command `accel` has its own folder first in its search path; `python -m accel` would have this one
    by = ("-P", *LAUNCH)
    jobs = [machines.start(at, *machines.place(at), "-n", 2, *BY_TORCH, *start, "x", by=by) for at in (0, 1)]
    zero, one = ends(jobs)
    for done in (zero, one):
        assert done.code == 0, done.err
        assert "shadowed" not in done.out + done.err
        assert f"path {beside} safe False None ['x']\nlevel None\n" in done.out, done.out
