"""All launchers together: who is recognised, and who wins."""

import pytest
from accel_state import DistributedType, Topology, TopologyError, detect
from accel_state.distributed_type import distributed_type

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
ACCEL = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "ACCEL_STORE_PORT": "4001",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
ADDRESS = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SLURM_BATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "gpu[01-02]",
}
SLURM_ONE_NODE = SLURM_BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_STEP_NODELIST": "gpu01",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
}
SLURM_TWO_NODES = SLURM_ONE_NODE | {
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("environ", "launcher", "place"),
    [
        pytest.param({}, "local", (0, 1, 0, 1, 0), id="none"),
        pytest.param(TORCHRUN, "torchrun", (3, 4, 1, 2, 1), id="torchrun"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "1"}, "torchrun", (0, 1, 0, 1, 0), id="torchrun-alone"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "3"}, "torchrun", (1, 3, 1, 3, 0), id="by-hand"),
        pytest.param(ACCEL, "accel launch", (1, 2, 1, 2, 0), id="accel-launch"),
        pytest.param(OPEN_MPI, "Open MPI", (1, 2, 1, 2, 0), id="open-mpi"),
        pytest.param(HYDRA | ADDRESS, "MPICH or Intel MPI", (2, 4, 0, 2, 0), id="mpich"),
        pytest.param(SLURM_ONE_NODE, "SLURM", (3, 4, 3, 4, 0), id="slurm-one-node"),
        pytest.param(SLURM_TWO_NODES, "SLURM", (3, 4, 1, 2, 1), id="slurm-two-nodes"),
        pytest.param(SLURM_BATCH, "local", (0, 1, 0, 1, 0), id="slurm-batch-script"),
    ],
)
def test_every_launcher_is_recognised(
    environ: dict[str, str], launcher: str, place: tuple[int, int, int, int, int]
) -> None:
    """Feature row S4."""
    found = detect(environ)
    assert found.launcher == launcher
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size, found.node_rank) == place
    many = found.world_size > 1
    assert distributed_type("cuda", found.world_size) == (DistributedType.MULTI_GPU if many else DistributedType.NO)
    assert distributed_type("cpu", found.world_size) == (DistributedType.MULTI_CPU if many else DistributedType.NO)
    assert distributed_type("xla", found.world_size) == DistributedType.TPU


@pytest.mark.parametrize("other", [OPEN_MPI, HYDRA, SLURM_TWO_NODES, OPEN_MPI | SLURM_TWO_NODES])
def test_rank_and_world_size_win_over_every_other_launcher(other: dict[str, str]) -> None:
    """Feature row S4, decision 10: torchrun inside mpirun or srun."""
    assert detect(TORCHRUN | other) == detect(TORCHRUN)
    assert detect(TORCHRUN | other).rank == 3


def test_mpirun_inside_a_slurm_step_wins_over_the_step() -> None:
    """Feature row S4: mpirun starts its own daemons by srun, so their step has one task a machine."""
    daemon = SLURM_TWO_NODES | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    assert detect(daemon | OPEN_MPI).launcher == "Open MPI"
    assert detect(daemon | HYDRA | ADDRESS).rank == 2


def test_the_pmi_variables_of_slurm_itself_do_not_hide_the_step() -> None:
    """Feature row S4: `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE, and nothing else of Hydra's."""
    assert detect(SLURM_TWO_NODES | {"PMI_RANK": "3", "PMI_SIZE": "4"}) == detect(SLURM_TWO_NODES)


def test_a_topology_that_contradicts_itself_names_the_launcher() -> None:
    with pytest.raises(TopologyError, match="found by 'torchrun': rank 4 of a world of 4: expected 0 to 3"):
        detect(TORCHRUN | {"RANK": "4"})
    with pytest.raises(TopologyError, match="found by 'Open MPI': rank 2 of a world of 2: expected 0 to 1"):
        detect(OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"})


def test_the_environment_that_is_given_is_not_changed() -> None:
    before = dict(SLURM_TWO_NODES)
    detect(SLURM_TWO_NODES)
    assert before == SLURM_TWO_NODES
    assert detect({"PATH": "/bin", "RANKS": "7"}) == Topology()
