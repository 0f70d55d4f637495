"""How many processes, and what each is told."""

from dataclasses import replace

import pytest
from accel_launch.cli.option_types import Value
from accel_launch.cli.options import LaunchSettings
from accel_launch.job.plan import (
    HostInfo,
    ProcessSpec,
    RendezvousInfo,
    count_processes,
    plan_many,
    plan_one,
)
from accel_state.errors import CannotRun
from click.core import ParameterSource

MEETING = RendezvousInfo(store_port=4001, store_fd=7, master_port=4002)
FOUR_GPUS = HostInfo(cores=16, accelerators=4)
NO_GPU = HostInfo(cores=16, accelerators=0)
RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}


def flags(**values: Value) -> LaunchSettings:
    return LaunchSettings().with_flags(**values)


def from_file(**values: Value) -> LaunchSettings:
    return LaunchSettings(**values, origins=dict.fromkeys(values, ParameterSource.DEFAULT_MAP))  # type: ignore[arg-type] # names of fields


def many(settings: LaunchSettings, environ: dict[str, str], count: int = 2) -> list[ProcessSpec]:
    return plan_many(settings, ("py", "s.py"), environ, count=count, host=FOUR_GPUS, meeting=MEETING)


@pytest.mark.parametrize(
    ("settings", "machine", "count"),
    [
        (flags(), FOUR_GPUS, 4),
        (flags(), NO_GPU, 1),
        (from_file(num_processes=4), NO_GPU, 4),
        (flags(num_processes=2), FOUR_GPUS, 2),
        (flags(gpu_ids="0,2"), FOUR_GPUS, 2),
        (flags(gpu_ids="all"), FOUR_GPUS, 4),
        (flags(cpu=True), FOUR_GPUS, 1),
        (flags(cpu=True, num_processes=9), FOUR_GPUS, 9),
        (from_file(gpu_ids="0,1").with_flags(cpu=True), FOUR_GPUS, 1),
    ],
)
def test_as_many_processes_as_asked_for_or_as_accelerators_or_one(
    settings: LaunchSettings, machine: HostInfo, count: int
) -> None:
    """S104b: Decisions 5, 8 and 10."""
    assert count_processes(settings, {}, machine) == count


@pytest.mark.parametrize(
    ("settings", "machine", "words"),
    [
        (flags(num_processes=5), FOUR_GPUS, "5 processes .* 4 can be seen: ask for 4 or fewer, or add --cpu"),
        (flags(num_processes=3, gpu_ids="0,1"), FOUR_GPUS, "gpu_ids 0,1 names 2"),
        (flags(gpu_ids="0"), NO_GPU, "no GPU was found"),
        (flags(gpu_ids="0", cpu=True), FOUR_GPUS, "--cpu and --gpu_ids 0 contradict"),
    ],
)
def test_gpus_that_are_not_there_are_refused(settings: LaunchSettings, machine: HostInfo, words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        count_processes(settings, {}, machine)


STARTED = [
    {"RANK": "1", "WORLD_SIZE": "2"},
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    {"PMI_RANK": "1", "PMI_SIZE": "2"},
    {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
]


@pytest.mark.parametrize("environ", STARTED)
def test_decision_10_under_another_launcher_it_is_one_process_in_place(environ: dict[str, str]) -> None:
    settings = from_file(num_processes=4)
    assert count_processes(settings, environ, FOUR_GPUS) == 1
    assert plan_one(flags(), ("py", "s.py"), environ).environ == environ


@pytest.mark.parametrize("environ", STARTED)
def test_two_launchers_at_once_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(CannotRun, match="choose one of the two"):
        count_processes(flags(num_processes=2), environ, NO_GPU)


def test_a_batch_script_of_slurm_is_no_step() -> None:
    assert count_processes(flags(num_processes=2), {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, NO_GPU) == 2


def test_one_process_is_told_settings_but_no_rank() -> None:
    settings = flags(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4, num_cpu_threads_per_process=3)
    spec = plan_one(settings, ("py", "s.py"), {"HOME": "/u"})
    assert spec.environ == {
        "HOME": "/u",
        "ACCEL_USE_CPU": "1",
        "ACCEL_MIXED_PRECISION": "bf16",
        "ACCEL_GRADIENT_ACCUMULATION_STEPS": "4",
        "OMP_NUM_THREADS": "3",
    }


def test_one_process_of_nothing_special_has_the_environment_as_it_is() -> None:
    assert plan_one(flags(), ("py",), {"A": "b"}).environ == {"A": "b"}


def test_a_flag_takes_back_what_the_environment_says() -> None:
    assert plan_one(flags(cpu=False), ("py",), {"ACCEL_USE_CPU": "1"}).environ["ACCEL_USE_CPU"] == "0"


def test_several_processes_differ_in_rank_and_only_rank_0_has_the_socket() -> None:
    first, second = many(flags(), {"HOME": "/u"})
    assert first.descriptors == (7,)
    assert second.descriptors == ()
    assert first.environ == {
        "HOME": "/u",
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4002",
        "ACCEL_STORE_PORT": "4001",
        "ACCEL_STORE_FD": "7",
        "OMP_NUM_THREADS": "8",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
    }
    different = {name for name in first.environ if first.environ[name] != second.environ.get(name)}
    assert different == {"RANK", "LOCAL_RANK", "ACCEL_STORE_FD"}


@pytest.mark.parametrize(
    ("settings", "environ", "threads"),
    [
        (flags(), {}, "8"),
        (flags(), {"OMP_NUM_THREADS": "5"}, "5"),
        (flags(num_cpu_threads_per_process=2), {"OMP_NUM_THREADS": "5"}, "2"),
        (from_file(num_cpu_threads_per_process=2), {}, "2"),
        (from_file(num_cpu_threads_per_process=2), {"OMP_NUM_THREADS": "5"}, "5"),
    ],
)
def test_threads_are_the_users_or_a_fair_share(settings: LaunchSettings, environ: dict[str, str], threads: str) -> None:
    assert {spec.environ["OMP_NUM_THREADS"] for spec in many(settings, environ)} == {threads}


def test_a_share_of_too_few_cores_is_one_thread() -> None:
    assert many(flags(), {}, count=99)[0].environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("loopback", ["lo", "lo0"])
def test_several_processes_listen_on_loopback_whatever_the_shell_names(loopback: str) -> None:
    environ = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "ib0"}
    machine = HostInfo(cores=16, accelerators=4, loopback_interface=loopback)
    for spec in plan_many(flags(), ("py",), environ, count=2, host=machine, meeting=MEETING):
        assert spec.environ["GLOO_SOCKET_IFNAME"] == loopback
        assert spec.environ["NCCL_SOCKET_IFNAME"] == f"={loopback}"
    assert plan_one(flags(), ("py",), environ).environ == environ


@pytest.mark.parametrize(
    ("environ", "gloos"),
    [({}, "eth1"), ({"GLOO_SOCKET_IFNAME": "eth0"}, "eth0"), ({"NCCL_SOCKET_IFNAME": "ib0"}, "eth1")],
)
def test_between_machines_gloo_takes_the_interface_where_they_meet(environ: dict[str, str], gloos: str) -> None:
    """The network for GPUs is often another one."""
    meeting = replace(MEETING, address="10.0.0.1", interface="eth1", machine=1, first=2, world=4)
    for spec in plan_many(flags(), ("py",), environ, count=2, host=FOUR_GPUS, meeting=meeting):
        assert spec.environ["GLOO_SOCKET_IFNAME"] == gloos
        assert spec.environ.get("NCCL_SOCKET_IFNAME") == environ.get("NCCL_SOCKET_IFNAME")


def test_what_torchrun_said_of_its_job_does_not_reach_ranks() -> None:
    environ = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "HOME": "/u"}
    for spec in many(flags(), environ):
        assert not [name for name in spec.environ if name.startswith("TORCHELASTIC_")]
        assert spec.environ["HOME"] == "/u"


STORE = {"ACCEL_STORE_FD": "3", "ACCEL_STORE_PORT": "4999"}


@pytest.mark.parametrize("rank", [{}, {"RANK": "0"}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_the_store_of_a_job_that_is_over_reaches_nobody(rank: dict[str, str]) -> None:
    first, second = many(flags(), {**STORE, **rank})
    assert (first.environ["ACCEL_STORE_FD"], first.environ["ACCEL_STORE_PORT"]) == ("7", "4001")
    assert "ACCEL_STORE_FD" not in second.environ
    assert second.environ["ACCEL_STORE_PORT"] == "4001"


@pytest.mark.parametrize("place", [{}, {"RANK": "0"}, {"PMI_RANK": "1", "PMI_SIZE": "2"}])
def test_a_store_without_a_rank_does_not_reach_a_single_process(place: dict[str, str]) -> None:
    assert plan_one(flags(), ("py",), {**STORE, **place}).environ == place


def test_a_worker_that_starts_accel_launch_again_keeps_its_store() -> None:
    environ = {**STORE, "RANK": "0", "WORLD_SIZE": "2"}
    assert plan_one(flags(), ("py",), environ).environ == environ


def test_each_process_is_shown_its_own_slice_of_a_gpu() -> None:
    """Of several MIG devices CUDA shows a process the first one only."""
    sliced = many(flags(), {"CUDA_VISIBLE_DEVICES": "MIG-a, MIG-b"})
    assert [spec.environ["CUDA_VISIBLE_DEVICES"] for spec in sliced] == ["MIG-a", "MIG-b"]
    whole = many(flags(), {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"})
    assert {spec.environ["CUDA_VISIBLE_DEVICES"] for spec in whole} == {"GPU-a,GPU-b"}


def test_gpu_ids_become_the_visible_devices() -> None:
    assert many(flags(gpu_ids="1,3"), {"CUDA_VISIBLE_DEVICES": "0"})[0].environ["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "CUDA_VISIBLE_DEVICES" not in many(flags(gpu_ids="all"), {})[0].environ


def test_what_answers_accelerate_is_told_to_every_process() -> None:
    assert {spec.environ["ACCEL_AS_ACCELERATE"] for spec in many(flags(as_accelerate=True), {})} == {"1"}
    assert "ACCEL_AS_ACCELERATE" not in many(flags(), {})[0].environ
