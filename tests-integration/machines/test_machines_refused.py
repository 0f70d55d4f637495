"""T19: set-ups of two machines that cannot run; each says why, on every machine that was started."""

import os
from pathlib import Path

import pytest
from accel_testing import stretched
from jobs import Ended
from namespaces import Machines, ends
from suite.soak import in_soak

FIRST = "10.77.0.1"
SOON_S = stretched(60)
HOLDER = "import socket, time; a = socket.create_server(('10.77.0.1', 29500)); print(1, flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('it runs')")


def flags(machine: int | None, *others: object, ip: str = FIRST, count: int = 2, wait_s: int = 5) -> list[object]:
    rank = ["--machine_rank", machine] if machine is not None else []
    return ["--num_machines", count, *rank, "--main_process_ip", ip, "--join_timeout", wait_s, *others, "script.py"]


def refused(done: Ended) -> str:
    """The words of a launcher that has started nothing."""
    assert done.code == 2, done.err
    assert done.err.startswith("accel: error: "), done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    return done.err


def both_refused(machines: Machines, zero: list[object], one: list[object]) -> tuple[str, str]:
    later, sooner = machines.start(1, *one), machines.start(0, *zero)
    there, here = ends([sooner, later], SOON_S)
    return refused(there), refused(here)


def test_the_batch_script_of_a_job_of_several_nodes_has_no_step(machines: Machines) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    said = refused(machines.start(0, "script.py", environ=environ).end(SOON_S))
    assert "this is a SLURM job of 2 nodes, but not a step of it" in said
    assert "srun --ntasks-per-node=1 accel launch" in said


def test_a_host_that_does_not_exist_is_named(machines: Machines) -> None:
    for said in both_refused(machines, flags(0, ip="nosuch", wait_s=1), flags(1, ip="nosuch", wait_s=1)):
        assert "nosuch:29500" in said
        assert "Name or service not known" in said or "name resolution" in said


def test_an_address_that_is_not_that_of_the_first_machine_is_said_on_both(machines: Machines) -> None:
    zero, one = both_refused(machines, flags(0, ip="10.77.0.2"), flags(1, ip="10.77.0.2", wait_s=1))
    assert "cannot be met at 10.77.0.2:29500 (Cannot assign requested address)" in zero
    assert "which is this one, node1" in zero
    assert "machine 0 does not answer at 10.77.0.2:29500 (Connection refused" in one


def test_two_machines_of_one_rank_are_named(machines: Machines) -> None:
    jobs = [machines.start(0, *flags(0, count=3)), machines.start(1, *flags(1, count=3))]
    jobs.append(machines.start(1, *flags(1, count=3)))
    for job in jobs:
        said = refused(job.end(SOON_S))
        assert said.count("machine_rank 1 was given on two machines, node2 (10.77.0.2) and node2 (10.77.0.2)") == 1


def test_two_first_machines_are_told_apart(machines: Machines) -> None:
    """The one that has the address waits in vain for the other, which is told that the address is not its own."""
    zero, one = both_refused(machines, flags(0, wait_s=2), flags(0, wait_s=2))
    assert "machine 1 of 2 did not come within 2 s; here: machine 0 (node1)" in zero
    assert "which is this one, node2" in one


def test_a_machine_that_does_not_come_is_told_by_its_number(machines: Machines) -> None:
    for said in both_refused(machines, flags(0, count=3, wait_s=2), flags(1, count=3, wait_s=5)):
        assert "machine 2 of 3 did not come within 2 s; here: machine 0 (node1), 1 (node2 (10.77.0.2))" in said
        assert "--main_process_ip 10.77.0.1 --main_process_port 29500" in said


def test_other_numbers_of_machines_are_refused_on_both(machines: Machines) -> None:
    for said in both_refused(machines, flags(0), flags(1, count=3)):
        assert "num_machines is 2 on node1, and 3 on node2 (10.77.0.2)" in said


def test_other_numbers_of_processes_are_refused_on_both(machines: Machines) -> None:
    for said in both_refused(machines, flags(0, "-n", 4), flags(1, "-n", 2)):
        assert "num_processes is 4 on node1, and 2 on node2 (10.77.0.2)" in said


def test_processes_that_machines_cannot_share_are_refused_on_each(machines: Machines) -> None:
    for said in both_refused(machines, flags(0, "-n", 3), flags(1, "-n", 3)):
        assert "3 processes cannot be shared evenly by 2 machines" in said


def test_a_port_that_somebody_has_is_named(machines: Machines) -> None:
    with machines.run(0, HOLDER) as holder:
        zero, one = both_refused(machines, flags(0), flags(1, wait_s=2))
        holder.kill()
    assert "cannot be met at 10.77.0.1:29500 (Address already in use)" in zero
    assert "a free port of it" in zero
    assert "machine 0, 10.77.0.1, has not begun within 2 s" in one


def test_all_that_is_missing_is_said_at_once(machines: Machines) -> None:
    said = refused(machines.start(0, "--num_machines", 2, "-n", 3, "script.py").end(SOON_S))
    assert "3 problems" in said
    for words in ("2 machines need --main_process_ip", "2 machines need --machine_rank", "3 processes cannot be"):
        assert words in said


def test_nobody_at_the_first_machine_is_said_by_the_other(machines: Machines) -> None:
    said = refused(machines.start(1, *flags(1, wait_s=2)).end(SOON_S))
    assert "machine 0 does not answer at 10.77.0.1:29500 (Connection refused; tried for 2 s)" in said
    assert "--machine_rank 0" in said


@pytest.mark.parametrize("number", [1, *in_soak(0)])
def test_a_machine_that_cannot_start_its_processes_is_told_on_the_other(number: int, machines: Machines) -> None:
    for name, line in (("starts", "#!/bin/sh\nexec sleep 600\n"), ("fails", "#!/nonexistent\n")):
        (machines.folder / name).write_text(line)
        (machines.folder / name).chmod(0o755)
    words = ["--no_python", "-n", 2, *flags(0)[:-1]], ["--no_python", "-n", 2, *flags(1)[:-1]]
    jobs = [machines.start(rank, *words[rank], "./fails" if rank == number else "./starts") for rank in (0, 1)]
    ended = ends(jobs, SOON_S)
    assert "No such file or directory: './fails'" in refused(ended[number])
    other = ended[1 - number]
    assert other.code == 2, other.err
    assert f"accel: on machine {number}, node{number + 1}:\n  the machine is gone, as it could not start" in other.err
    assert "No such file or directory: './fails'" in other.err


DIES = {
    "all have met": """\
from accel_launch.nodes.node_rendezvous import NodeRendezvous
meet = NodeRendezvous.meet
NodeRendezvous.meet = lambda self: (meet(self), os._exit(9))
""",
    "it knows its ranks": """\
from accel_launch.nodes.node_workers import NodeWorkers
NodeWorkers._start = lambda *_: os._exit(9)
""",
}


def first_in_path(machines: Machines) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(machines.folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("when", ["all have met", *in_soak("it knows its ranks")])
def test_a_machine_that_dies_before_its_processes_start_is_named(when: str, machines: Machines) -> None:
    (machines.folder / "sitecustomize.py").write_text(f"import os\n{DIES[when]}")
    (machines.folder / "starts").write_text("#!/bin/sh\nexec sleep 600\n")
    (machines.folder / "starts").chmod(0o755)
    words = ("--rdzv_backend", "c10d", "--no_python", "-n", 2)
    zero = machines.start(0, *words, *flags(0)[:-1], "./starts")
    machines.start(1, *words, *flags(1)[:-1], "./starts", environ=first_in_path(machines))
    done = zero.end(SOON_S)
    assert done.code == 1, done.err
    assert "accel: on machine 1, node2:\n  the machine is gone: its launcher has ended" in done.err
    assert "machine 0" not in done.err


def test_a_first_machine_gone_before_processes_start_is_said_in_words(machines: Machines) -> None:
    dies = "import os\nfrom accel_launch.job import ports\nports.reserved_ports = lambda *_: os._exit(9)\n"
    (machines.folder / "sitecustomize.py").write_text(dies)
    zero = machines.start(0, *flags(0), environ=first_in_path(machines))
    _, one = ends([zero, machines.start(1, *flags(1))], SOON_S)
    assert "machine 0, 10.77.0.1, is gone: " in refused(one)
