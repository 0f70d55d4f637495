"""Which machine of how many this one is: from what was said, and from what SLURM says."""

from collections.abc import Mapping
from typing import Any

import pytest
from accel_launch.cli.options import LaunchSettings
from accel_launch.job.plan import HostInfo
from accel_launch.nodes.node_spec import USUAL_PORT, NodeSpec, find_node
from accel_state.errors import CannotRun

CPU = HostInfo(cores=8, accelerators=0)
GPUS = HostInfo(cores=8, accelerators=4)
STEP = {
    "SLURM_JOB_ID": "100",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[07-08,11]",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
}
# `accel_state.environments.slurm` has the formula; every step of every job has a port of its own for most of them
STEPS_PORT = 15000 + 100 * 31 + 2


def said(**flags: Any) -> LaunchSettings:
    return LaunchSettings().with_flags(**flags)


def problems(settings: LaunchSettings, environ: Mapping[str, str] | None = None, machine: HostInfo = CPU) -> list[str]:
    with pytest.raises(CannotRun) as caught:
        find_node(settings, environ or {}, machine)
    return list(caught.value.reasons)


@pytest.mark.parametrize("settings", [said(), said(num_machines=1), said(num_machines=1, machine_rank=0)])
def test_one_machine_has_no_place_among_others(settings: LaunchSettings) -> None:
    assert find_node(settings, {}, CPU) is None


def test_what_was_said_is_the_place() -> None:
    settings = said(num_machines=4, machine_rank=3, main_process_ip="head", main_process_port=4711, num_processes=8)
    assert find_node(settings, {}, CPU) == NodeSpec(3, 4, "head", 4711)


def test_machines_meet_at_the_port_of_torch_where_none_is_said() -> None:
    settings = said(num_machines=2, machine_rank=0, main_process_ip="head")
    assert find_node(settings, {}, CPU) == NodeSpec(0, 2, "head", USUAL_PORT)


def test_the_rank_is_left_to_the_rendezvous_of_torch() -> None:
    settings = said(num_machines=2, main_process_ip="head", rdzv_backend="c10d")
    assert find_node(settings, {}, CPU) == NodeSpec(None, 2, "head", USUAL_PORT)


def test_all_problems_are_told_at_once() -> None:
    found = problems(said(num_machines=2, num_processes=3))
    assert len(found) == 3
    assert "2 machines need --main_process_ip" in found[0]
    assert "2 machines need --machine_rank: 0 on the first, up to 1 on the last" in found[1]
    assert "3 processes cannot be shared evenly by 2 machines" in found[2]


def test_a_rank_that_no_machine_has_is_refused() -> None:
    (found,) = problems(said(num_machines=2, machine_rank=2, main_process_ip="head"))
    assert found == "machine_rank 2 was given, but 2 machines have the ranks 0 to 1"


def test_a_rank_of_one_machine_is_refused() -> None:
    assert problems(said(machine_rank=1)) == ["machine_rank 1 was given, but num_machines is 1"]


@pytest.mark.parametrize(("count", "machine"), [(6, CPU), (None, GPUS)])
def test_a_step_with_a_task_on_each_node_tells_the_place(count: int | None, machine: HostInfo) -> None:
    flags = {"num_processes": count, "cpu": True} if count is not None else {}
    assert find_node(said(**flags), STEP, machine) == NodeSpec(1, 3, "gpu07", STEPS_PORT)


@pytest.mark.parametrize(("settings", "machine"), [(said(cpu=True), GPUS), (said(), CPU), (said(num_processes=3), CPU)])
def test_tasks_that_are_the_processes_have_no_place(settings: LaunchSettings, machine: HostInfo) -> None:
    """Each task of the step is one process, and SLURM has told it its rank."""
    assert find_node(settings, STEP, machine) is None


def test_tasks_for_each_process_of_a_node_have_no_place() -> None:
    assert find_node(said(), {**STEP, "SLURM_STEP_NUM_TASKS": "12"}, GPUS) is None


def test_what_was_said_wins_over_the_step() -> None:
    settings = said(num_machines=3, machine_rank=2, main_process_ip="other", main_process_port=4711)
    assert find_node(settings, STEP, CPU) == NodeSpec(2, 3, "other", 4711)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}, "but the SLURM step has 2 nodes"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, "the SLURM step has 6 tasks on 3 nodes"),
        ({"SLURM_STEP_NODELIST": "gpu[a-b]"}, "expected numbers and ranges in brackets"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(changed: Mapping[str, str], words: str) -> None:
    assert any(words in one for one in problems(said(num_machines=3), {**STEP, **changed}))


@pytest.mark.parametrize("name", ["SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_ID"])
@pytest.mark.parametrize("word", ["", "x", "-1"])
def test_what_slurm_does_not_say_in_numbers_is_not_used(name: str, word: str) -> None:
    assert find_node(said(num_processes=6), {**STEP, name: word}, CPU) is None


@pytest.mark.parametrize("name", ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"])
def test_the_batch_script_of_several_nodes_is_refused(name: str) -> None:
    (found,) = problems(said(), {"SLURM_JOB_ID": "1", name: "4", "SLURM_PROCID": "0"})
    assert "this is a SLURM job of 4 nodes, but not a step of it" in found
    assert "--num_machines 1" in found


@pytest.mark.parametrize(
    ("settings", "environ"),
    [
        (said(num_machines=1), {"SLURM_JOB_ID": "1", "SLURM_NNODES": "4"}),
        (said(), {"SLURM_JOB_ID": "1", "SLURM_NNODES": "1"}),
        (said(), {"SLURM_NNODES": "4"}),
        (said(), {"SLURM_JOB_ID": "1", "SLURM_NNODES": "many"}),
    ],
)
def test_the_batch_script_runs_on_one_node_where_that_is_meant(
    settings: LaunchSettings, environ: Mapping[str, str]
) -> None:
    assert find_node(settings, environ, CPU) is None
