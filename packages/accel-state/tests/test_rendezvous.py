"""Where processes meet, who opens the process group, and who closes it."""

import os
import re
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accel_comm import GroupOptions, status_store
from accel_comm.store_connection import StoreConnection, _sockets
from accel_state import (
    PartialState,
    RunRequest,
    Topology,
    TopologyError,
    acquire,
    current,
    release,
    rendezvous,
)
from accel_state.environ import LAZY_GLOO
from accel_state.environments import detect
from accel_state.rendezvous import adopt, join_group
from accel_testing import MakePool, stretched
from jobs import free_port
from torch._C._distributed_c10d import HashStore

MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
SCRIPT = """
from accel_comm import GroupOptions
from accel_state import PartialState
state = PartialState(cpu=True)
print(state.run.topology.launcher, state.run.transport.all_gather_objects(state.process_index))
"""


def forget_the_place() -> int:
    """In a worker: the rank, of which the environment then says nothing."""
    rank = int(os.environ["RANK"])
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        os.environ.pop(name, None)
    return rank


def meet_by_address(variable: str, port: int) -> tuple[str, list[int], bool, bool]:
    os.environ[variable] = str(port)
    run = acquire(RunRequest(cpu=True))
    everyone = run.transport.all_gather_objects(run.topology.rank)
    opened = run.opened_group and dist.is_initialized()
    release()
    return run.topology.launcher, everyone, opened, dist.is_initialized()


@pytest.mark.parametrize(("variable", "launcher"), [("MASTER_PORT", "torchrun"), ("ACCEL_STORE_PORT", "accel launch")])
def test_processes_meet_at_the_address_and_close_what_they_opened(
    world: MakePool, variable: str, launcher: str
) -> None:
    """Feature rows S4 and S100, decision 10: no accelerator, and yet two ranks by gloo."""
    found = world(2, join=False).run(meet_by_address, variable, free_port())
    assert found == [(launcher, [0, 1], True, False)] * 2


def await_all(ranks: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    store.add("counted", 1)
    while store.add("counted", 0) < ranks:
        time.sleep(0.01)


def sockets_of_a_group(port: int, mesh_ranks: int) -> tuple[int, list[float]]:
    """The sockets that opening a group of four has taken, and sums over all, two of them, and all again."""
    os.environ["MASTER_PORT"] = str(port)
    topology, before = detect(os.environ), len(_sockets())
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(LAZY_GLOO, raising=False)
        patch.setattr(rendezvous, "MESH_RANKS", mesh_ranks)
        join_group(topology, "gloo")
        count = len(_sockets()) - before
        await_all(topology.world_size)  # a rank that exchanged would open sockets of ranks that still count
        patch.delenv(LAZY_GLOO, raising=False)
    sums = []
    for group in (dist.group.WORLD, dist.new_group([0, 2]), dist.group.WORLD):
        sums.append(number := torch.ones(1))
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(number, group=group)
    dist.destroy_process_group()
    return count, [float(number) for number in sums]


def test_gloo_connects_ranks_of_a_large_group_when_they_exchange(world: MakePool) -> None:
    """Each with each, 4,096 ranks need 4,095 sockets each."""
    for_all, when_used = (world(4, join=False).run(sockets_of_a_group, free_port(), ranks) for ranks in (4, 3))
    assert [sums for _, sums in when_used] == [sums for _, sums in for_all] == [[4, 2, 4], [4, 1, 4]] * 2
    for (at_once, _), (late, _) in zip(for_all, when_used, strict=True):
        assert at_once - late >= 2


def connections_to_the_store(port: int) -> int:
    os.environ["MASTER_PORT"] = str(port)
    opened = list[StoreConnection]()

    def counting(store: Any) -> StoreConnection:
        opened.append(StoreConnection(store))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_store, "StoreConnection", counting)
        acquire(RunRequest(cpu=True))
        release()
    return len(opened)


def test_a_run_has_one_connection_to_the_store_beside_torchs(world: MakePool) -> None:
    """Each is an open file of rank 0."""
    assert world(2, join=False).run(connections_to_the_store, free_port()) == [1, 1]


def use_an_open_group() -> tuple[bool, bool, bool, list[int]]:
    first = acquire(RunRequest(cpu=True))
    again = acquire(RunRequest(cpu=True))
    release()
    numbers: list[int] = [0, 0]
    dist.all_gather_object(numbers, dist.get_rank())
    return first.opened_group, first is again, dist.is_initialized(), numbers


def test_a_group_that_was_open_is_used_and_left_open(world: MakePool) -> None:
    """Feature row S120: also the second request opens nothing."""
    assert world(2).run(use_an_open_group) == [(False, True, True, [0, 1])] * 2


def twice_in_one_process(port: int) -> list[int]:
    os.environ["MASTER_PORT"] = str(port)
    sums = []
    for _ in range(2):
        state = PartialState(cpu=True)
        sums.append(sum(state.run.transport.all_gather_objects(state.process_index + 1)))
        state.wait_for_everyone()
        if state.is_main_process:
            time.sleep(0.2)  # the other rank asks for the next run's store before this run's is closed
        state.destroy_process_group()
    return sums


def test_a_released_process_may_start_another_run(world: MakePool) -> None:
    assert world(2, join=False).run(twice_in_one_process, free_port()) == [[3, 3], [3, 3]]


def twice_through_an_inherited_socket(port: int) -> list[int]:
    os.environ["ACCEL_STORE_PORT"] = str(port)
    if os.environ["RANK"] == "0":
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        os.environ["ACCEL_STORE_FD"] = str(listening.detach())
    return twice_in_one_process(port)


def test_a_socket_of_the_launcher_serves_more_than_one_run(world: MakePool) -> None:
    """A descriptor can be taken over once: the second run finds the store of the first."""
    assert world(2, join=False).run(twice_through_an_inherited_socket, free_port()) == [[3, 3], [3, 3]]


def adopt_an_open_group() -> tuple[int, int, str]:
    forget_the_place()
    state = PartialState(cpu=True)
    return state.process_index, state.num_processes, state.run.topology.launcher


def test_a_group_that_is_open_says_who_this_is_when_nothing_else_does(world: MakePool) -> None:
    """Feature row S4: processes of torch.multiprocessing do not train apart without a word."""
    who = "the process group that is open"
    assert world(2).run(adopt_an_open_group) == [(0, 2, who), (1, 2, who)]


def adopt_on_two_machines() -> tuple[int, ...]:
    rank = forget_the_place()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_state.rendezvous.own_host", lambda: ["node a", "node b", "node b"][rank])
        place = adopt(Topology())
    return place.rank, place.local_rank, place.local_world_size, place.node_rank


def test_a_group_that_is_open_on_two_machines_counts_ranks_on_each(world: MakePool) -> None:
    """The rank on the machine chooses the GPU."""
    assert world(3).run(adopt_on_two_machines) == [(0, 0, 1, 0), (1, 0, 2, 1), (2, 1, 2, 1)]


def group_without_cpu(port: int) -> str:
    os.environ["MASTER_PORT"] = str(port)
    rank, method = int(os.environ["RANK"]), f"tcp://127.0.0.1:{port}"
    dist.init_process_group("cuda:gloo", init_method=method, rank=rank, world_size=2)
    try:
        acquire(RunRequest(cpu=True))
    except TopologyError as error:
        return str(error)
    finally:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"end/{rank}", "")
        store.wait(["end/0", "end/1"])
        dist.destroy_process_group()
    return "no error"


def test_an_open_group_that_does_not_serve_the_cpu_is_refused(world: MakePool) -> None:
    expected = (
        "the process group that is open serves cuda, and this run exchanges on cpu; open it with backend='gloo', or"
        " leave that to accel"
    )
    assert world(2, join=False).run(group_without_cpu, free_port()) == [expected] * 2


def test_the_group_is_opened_with_that_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: opened.append(backend))
    monkeypatch.setattr("accel_state.rendezvous._store", lambda *_: HashStore())
    monkeypatch.setattr("accel_comm.process_group.atexit.register", lambda _: None)
    join_group(Topology(rank=0, world_size=2, local_world_size=2), "gloo", GroupOptions(backend="nccl"))
    assert opened == ["cpu:gloo,cuda:nccl"]


def contradict() -> str:
    os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"] = "4", "4"
    try:
        acquire(RunRequest(cpu=True))
    except TopologyError as error:
        return str(error)
    return "no error"


def test_an_open_group_that_contradicts_the_environment_is_refused(world: MakePool) -> None:
    assert world(2).run(contradict) == [
        f"a process group is open with rank {rank} of 2, but torchrun says rank {rank} of 4;"
        " open neither by hand, or both alike"
        for rank in (0, 1)
    ]


def test_ranks_without_an_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TopologyError) as refused:
        acquire(RunRequest(cpu=True))
    assert str(refused.value) == (
        "RANK=0 and WORLD_SIZE=2 are set, but not where the processes meet; set MASTER_ADDR to the host of rank 0 and"
        " MASTER_PORT to a free port there, or start the script with accel launch or torchrun"
    )
    assert not dist.is_initialized()


def test_several_machines_without_an_address_are_refused() -> None:
    with pytest.raises(TopologyError) as refused:
        join_group(Topology(rank=0, world_size=4, local_world_size=2, launcher="Open MPI"), "gloo")
    assert str(refused.value) == (
        "Open MPI started 4 processes on several machines and no address to meet at is set;"
        " set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port, on every process"
    )
    assert not dist.is_initialized()


def without_gloos(printed: str) -> str:
    """What was printed, without the sentences that gloo of torch 2.9 prints."""
    return re.sub(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\..* is : \d+\n?", "", printed)


def as_mpi(rank: int) -> dict[str, str]:
    ranks, sizes = MPI
    return dict.fromkeys(ranks, str(rank)) | dict.fromkeys(sizes, "2")


def test_two_processes_of_mpirun_meet_without_an_address(tmp_path: Path) -> None:
    """Feature row S4: as `mpirun -n 2 python script.py` starts them, with nothing but Open MPI's variables."""
    path = os.pathsep.join(os.path.abspath(record) for record in sys.path if record)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "TMPDIR": str(tmp_path), "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=environ | as_mpi(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for process in started:
            out, err = process.communicate(timeout=stretched(60))
            assert (without_gloos(out), err) == ("Open MPI [0, 1]\n", "")
            assert process.returncode == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()
    (folder,) = tmp_path.glob("accel-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []


def meet_as_mpi() -> tuple[str, list[int]]:
    rank = forget_the_place()
    os.environ.update(as_mpi(rank))
    run = acquire(RunRequest(cpu=True))
    try:
        return run.topology.launcher, run.transport.all_gather_objects(rank)
    finally:
        release()


def test_jobs_that_one_parent_starts_one_after_the_other_do_not_meet(
    world: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feature row S4: the file of the first job is gone when the second one meets."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for _ in range(2):
        assert world(2, join=False).run(meet_as_mpi) == [("Open MPI", [0, 1])] * 2


def close_after_the_user() -> bool:
    run = acquire(RunRequest(cpu=True))
    dist.destroy_process_group()
    release()
    return run.opened_group


def test_a_group_that_the_user_has_closed_may_be_released(
    world: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert world(2, join=False).run(close_after_the_user) == [True, True]


def test_a_single_process_opens_no_group() -> None:
    """Feature row S86."""
    PartialState(cpu=True)
    assert current().opened_group is False
    assert not dist.is_initialized()


def test_torchrun_serves_more_than_one_run(tmp_path: Path, forking_python: str) -> None:
    """Its agent's store outlives each group, and the addresses of the first are still in it."""
    script = tmp_path / "runs.py"
    script.write_text(
        "from accel_state import PartialState, release\n"
        "for _ in range(3):\n"
        "    state = PartialState(cpu=True)\n"
        "    found = sum(state.run.transport.all_gather_objects(state.process_index + 1))\n"
        "    print(f'sum {found},', flush=True)\n"
        "    release()\n"
    )
    torchrun = [forking_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(torchrun, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3,") == 6, done.stdout
