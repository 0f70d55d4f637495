import pytest
from accel_state import Rendezvous, TopologyError
from accel_state.environments.mpi import HYDRA, OPEN_MPI, Mpi


@pytest.mark.parametrize("names", [OPEN_MPI, HYDRA])
def test_every_number_of_the_launcher_is_used(names: tuple[str, ...]) -> None:
    """Feature row S4."""
    topology = Mpi.topology(dict(zip(names, ("5", "8", "1", "4"), strict=True)))
    assert topology is not None
    assert (topology.rank, topology.world_size, topology.local_rank, topology.local_world_size) == (5, 8, 1, 4)
    assert topology.rendezvous is None


@pytest.mark.parametrize(
    ("names", "launcher"), [(OPEN_MPI, "Open MPI"), (HYDRA, "MPICH or Intel MPI")], ids=["open-mpi", "hydra"]
)
def test_half_of_its_variables_are_refused(names: tuple[str, ...], launcher: str) -> None:
    with pytest.raises(TopologyError) as refused:
        Mpi.topology({names[0]: "0", names[1]: "2", names[3]: "many"})
    assert str(refused.value) == (
        f"the environment is half set by {launcher}: {names[0]}='0', {names[1]}='2', {names[2]} is missing,"
        f" {names[3]}='many'. Set each of them to a whole number, or unset all of them to run as a single process"
    )


def test_an_address_is_taken_when_there_is_one() -> None:
    environ = dict(zip(OPEN_MPI, ("0", "2", "0", "2"), strict=True))
    topology = Mpi.topology(environ | {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
    assert topology is not None
    assert topology.rendezvous == Rendezvous("node0", 29500)


def test_half_an_address_is_refused_by_the_name_of_the_launcher() -> None:
    environ = dict(zip(OPEN_MPI, ("0", "2", "0", "2"), strict=True))
    with pytest.raises(TopologyError, match="set by Open MPI: MASTER_ADDR='node0', MASTER_PORT is missing"):
        Mpi.topology(environ | {"MASTER_ADDR": "node0"})


def test_it_is_silent_without_its_variables() -> None:
    assert Mpi.topology({"PMI_FD": "4", "OMPI_MCA_btl": "tcp"}) is None
