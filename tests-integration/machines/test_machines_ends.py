"""How jobs of two machines end: both launchers give the same code, and say on which machine it was, and why."""

import signal

import pytest
from jobs import SOON_S
from namespaces import Machines, ends
from suite.soak import in_soak

# these know nothing of torch: rank 0 is on the first machine, rank 1 on the second
PLAIN = """\
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
open(f"here-{rank}", "w").close()
while not (os.path.exists("here-0") and os.path.exists("here-1")):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("killed", [0, *in_soak(1)])
def test_a_rank_that_is_killed_is_told_on_both_machines(killed: int, machines: Machines) -> None:
    dies = f"if rank == {killed}: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    found = ends(machines.start_both("-n", 2, machines.script(PLAIN + dies)))
    for done in found:
        assert done.code == 128 + signal.SIGKILL, done.err
        assert f"rank {killed} of 2" in done.err
        assert "was killed by SIGKILL" in done.err
    assert f"accel: on machine {killed}, node{killed + 1}:" in found[1 - killed].err
    assert "on machine" not in found[killed].err


@pytest.mark.parametrize("killed", [0, *in_soak(1)])
def test_a_launcher_that_is_killed_is_missed_and_nothing_is_left(killed: int, machines: Machines) -> None:
    jobs = machines.start_both("-n", 4, "--max_restarts", 3, machines.script(PLAIN + "time.sleep(600)"))
    machines.wait_for((machines.folder / "here-3").exists)
    jobs[killed].process.kill()
    done = jobs[1 - killed].end()
    assert done.code == 1, done.err
    host = f"node{killed + 1}"
    assert f"accel: on machine {killed}, {host}:\n  the machine is gone: " in done.err
    mine = (0, 1) if killed else (2, 3)
    assert f"ended here because of it: rank {mine[0]}, {mine[1]}" in done.err
    assert "starts again" not in done.err


@pytest.mark.parametrize("killed", [0, *in_soak(1)])
def test_an_agent_of_torch_that_is_killed_leaves_nothing_and_is_missed(killed: int, machines: Machines) -> None:
    words = ("-n", 4, "--rdzv_backend", "c10d", machines.script(PLAIN + "time.sleep(600)"))
    jobs = machines.start_both(*words)
    machines.wait_for((machines.folder / "here-3").exists)
    jobs[killed].process.kill()
    jobs[killed].process.wait()
    machines.wait_for(lambda: machines.processes(killed) == [])
    done = jobs[1 - killed].end(SOON_S)
    assert done.code == 1, done.err
    assert f"accel: on machine {killed}, " in done.err
    assert "the machine is gone" in done.err


@pytest.mark.parametrize("failed", [1, *in_soak(0)])
def test_a_rank_that_fails_after_the_other_machine_is_told_on_both(failed: int, machines: Machines) -> None:
    late = f"if rank == {failed}: time.sleep(0.8); sys.exit(7)"
    for done in ends(machines.start_both("-n", 2, machines.script(PLAIN + late))):
        assert done.code == 7, done.err
        assert f"rank {failed} of 2" in done.err
        assert "failed with exit code 7" in done.err


@pytest.mark.parametrize("failed", [1, *in_soak(0)])
def test_both_machines_start_again_after_a_failure_and_leave_nothing(failed: int, machines: Machines) -> None:
    """What the rank has started in a session of its own, as services are, would hold its port for ever."""
    again = f"""
attempt = os.environ["ACCEL_ATTEMPT"]
left = f"left-{{rank}}"
if attempt == "0":
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    open(left, "w").write(str(child.pid))
    if rank == {failed}: sys.exit(7)
    time.sleep(600)
print("rank", rank, "attempt", attempt, "left", os.path.exists("/proc/" + open(left).read()))
"""
    zero, one = ends(machines.start_both("-n", 2, "--max_restarts", 1, machines.script(PLAIN + again)))
    assert (zero.code, one.code) == (0, 0), zero.err + one.err
    assert zero.out == "rank 0 attempt 1 left False\n"
    assert one.out == "rank 1 attempt 1 left False\n"
    assert "accel: starts again in 1 s (1 of 1 times)" in zero.err


@pytest.mark.grid(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("told", [0, 1])
def test_a_signal_to_one_launcher_ends_both(number: signal.Signals, told: int, machines: Machines) -> None:
    """And nothing is started again: somebody wanted it to end."""
    jobs = machines.start_both("-n", 2, "--max_restarts", 2, machines.script(PLAIN + "time.sleep(600)"))
    machines.wait_for((machines.folder / "here-1").exists)
    machines.wait_for((machines.folder / "here-0").exists)
    jobs[told].process.send_signal(number)
    found = ends(jobs, 15)
    assert found[told].code == 128 + number, found[told].err
    assert f"was ended by {number.name} from outside" in found[told].err
    other = found[1 - told]
    assert other.code != 0, other.err
    assert f"accel: on machine {told}" in other.err
    assert number.name in other.err
