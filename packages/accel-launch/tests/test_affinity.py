"""Cores are shared out evenly, next to each process's GPU, and no two processes have one where there are enough."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_launch.cli.options import LaunchSettings
from accel_launch.job.affinity import cores_of_processes, shares_of_cores
from accel_launch.job.job import Job
from accel_launch.job.plan import HostInfo
from accel_launch.nodes.node_spec import NodeSpec
from hypothesis import given
from hypothesis import strategies as st

Run = Callable[..., "subprocess.CompletedProcess[str]"]

counts = st.integers(1, 20)
cores_of_nodes = st.lists(st.integers(1, 24), min_size=1, max_size=4).map(
    lambda sizes: {at: list(range(sum(sizes[:at]), sum(sizes[: at + 1]))) for at in range(len(sizes))}
)


@given(counts, cores_of_nodes)
def test_all_cores_are_shared_evenly_where_no_gpu_is(count: int, cores: dict[int, list[int]]) -> None:
    everything = [core for some in cores.values() for core in some]
    shares = shares_of_cores(count, [], cores)
    assert len(shares) == count
    assert all(shares)
    if len(everything) >= count:
        assert sorted(core for share in shares for core in share) == everything
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        assert all(set(share) <= set(everything) for share in shares)


@given(cores_of_nodes, st.data())
def test_processes_have_cores_next_to_their_gpu(cores: dict[int, list[int]], data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.sampled_from(sorted(cores)), min_size=1, max_size=12))
    shares = shares_of_cores(len(nodes), nodes, cores)
    for node in set(nodes):
        mine = [share for share, other in zip(shares, nodes, strict=True) if other == node]
        assert all(set(share) <= set(cores[node]) for share in mine)
        if len(cores[node]) >= len(mine):
            assert sorted(core for share in mine for core in share) == cores[node]
            assert max(map(len, mine)) - min(map(len, mine)) <= 1
        else:
            assert all(mine)


@pytest.mark.parametrize("nodes", [[0], [0, None], [None, 1], [0, 7]])
def test_all_share_all_cores_where_the_node_of_a_gpu_is_not_known(nodes: list[int | None]) -> None:
    assert shares_of_cores(2, nodes, {0: [0, 1], 1: [2, 3]}) == [[0, 1], [2, 3]]


def test_more_gpus_than_processes_change_nothing() -> None:
    assert shares_of_cores(1, [1, 0], {0: [0, 1], 1: [2, 3]}) == [[2, 3]]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of two NUMA nodes with two GPUs each, of whose 16 cores this process may use 14."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(14)), raising=False)
    for node, cores in enumerate(("0-3,8-11\n", "4-7,12-15\n")):
        folder = tmp_path / "sys/devices/system/node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores)
    for bus, node in (("0000:1A:00.0", 1), ("0000:3B:00.0", 0), ("0000:8C:00.0", 0), ("0000:AF:00.0", 1)):
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
        device = tmp_path / "sys/bus/pci/devices" / bus.lower()
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return tmp_path


linux = pytest.mark.skipif(sys.platform != "linux", reason="cores can be chosen on Linux only")


@linux
def test_the_system_says_which_cores_are_next_to_which_gpu(system: Path) -> None:
    """Only those that this process may use: 14 and 15 are somebody else's."""
    assert cores_of_processes(4, ["0", "1", "2", "3"], system) == [[4, 5, 6], [0, 1, 2, 3], [8, 9, 10, 11], [7, 12, 13]]


@linux
def test_gpus_in_another_order_take_their_cores_along(system: Path) -> None:
    assert cores_of_processes(2, ["3", "1"], system) == [[4, 5, 6, 7, 12, 13], [0, 1, 2, 3, 8, 9, 10, 11]]


@linux
@pytest.mark.parametrize("word", ["-1", "", "nonsense"])
def test_all_cores_are_shared_where_the_system_does_not_say(word: str, system: Path) -> None:
    (system / "sys/bus/pci/devices/0000:1a:00.0/numa_node").write_text(word)
    assert cores_of_processes(2, ["0", "1"], system) == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13]]


@linux
@pytest.mark.parametrize("gpu", ["9", "GPU-3a-b"])
def test_a_gpu_that_the_system_does_not_list_shares_all_cores(gpu: str, system: Path) -> None:
    assert cores_of_processes(2, ["0", gpu], system) == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13]]


@linux
def test_a_node_without_cores_or_with_none_of_ours_is_left_out(system: Path) -> None:
    """Memory without cores is a node as well; its list is an empty line."""
    extra = system / "sys/devices/system/node/node2"
    extra.mkdir()
    (extra / "cpulist").write_text("\n")
    assert cores_of_processes(1, ["1"], system) == [[0, 1, 2, 3, 8, 9, 10, 11]]


@linux
def test_a_system_that_says_nothing_has_all_cores_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 9})
    assert cores_of_processes(2, ["0", "1"], tmp_path) == [[2], [5, 9]]


def test_other_systems_bind_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cores_of_processes(3, []) == [[], [], []]


@linux
def test_a_process_in_place_of_the_launcher_is_bound_to_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        "import os, sys\nfrom accel_launch.job.job import become\nfrom accel_launch.job.plan import ProcessSpec\n"
        f"script = 'import os; print(os.sched_getaffinity(0))'\n"
        f"become(ProcessSpec((sys.executable, '-c', script), os.environ, cores=({core},)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{{{core}}}\n"


@linux
def test_the_cores_of_one_process_are_those_next_to_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[str]]] = []

    def next_to_gpus(count: int, gpus: list[str]) -> list[list[int]]:
        asked.append((count, gpus))
        return [[7]]

    monkeypatch.setattr("accel_launch.job.affinity.cores_of_processes", next_to_gpus)
    settings = LaunchSettings().with_flags(enable_cpu_affinity=True, gpu_ids="2")
    job = Job(settings, ("python",), {}, HostInfo(8, 4), 1)
    assert [spec.cores for spec in job.processes({}, None)] == [(7,)]
    assert asked == [(1, ["2"])]
    told = Job(settings, ("python",), {"RANK": "0", "WORLD_SIZE": "2"}, HostInfo(8, 4), 1)
    assert [spec.cores for spec in told.processes({}, None)] == [()], "another launcher gives it its cores"
    task = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    machine = Job(settings, ("python",), task, HostInfo(8, 4), 1, NodeSpec(0, 2, "node0", 1))
    assert [spec.cores for spec in machine.processes({}, None)] == [(7,)], "a task of SLURM that is a whole machine"


def test_it_is_said_if_another_launcher_gives_a_process_its_cores(accel_program: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    done = accel_program("launch", "--enable_cpu_affinity", "empty.py", environ={"RANK": "0", "WORLD_SIZE": "1"})
    assert done.returncode == 0
    assert done.stderr.startswith("accel: --enable_cpu_affinity has no effect: another launcher has started this")
    assert done.stderr.count("\n") == 1
