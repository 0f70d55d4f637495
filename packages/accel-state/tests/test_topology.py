from dataclasses import FrozenInstanceError, asdict

import pytest
from accel_state import Rendezvous, Topology, TopologyError
from hypothesis import given, settings
from hypothesis import strategies as st


def test_without_arguments_it_is_a_single_process() -> None:
    """Feature row S4."""
    alone = {"rank": 0, "world_size": 1, "local_rank": 0, "local_world_size": 1, "node_rank": 0}
    assert asdict(Topology()) == alone | {"rendezvous": None, "launcher": "local"}


def test_it_cannot_be_changed() -> None:
    topology = Topology()
    with pytest.raises(FrozenInstanceError):
        topology.rank = 1  # type: ignore[misc]


@pytest.mark.parametrize("rank", [-1, 2, 99])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(TopologyError, match=f"rank {rank} of a world of 2: expected 0 to 1"):
        Topology(rank=rank, world_size=2)


def test_a_local_rank_outside_its_machine_is_refused() -> None:
    with pytest.raises(TopologyError, match="local rank 2 of 2 on this machine: expected 0 to 1"):
        Topology(rank=2, world_size=4, local_rank=2, local_world_size=2)


def test_more_processes_on_a_machine_than_in_the_world_are_refused() -> None:
    with pytest.raises(TopologyError, match="3 processes on this machine in a world of 2: expected 1 to 2"):
        Topology(rank=0, world_size=2, local_world_size=3)


def test_all_problems_are_reported_at_once_with_the_launcher() -> None:
    with pytest.raises(TopologyError) as refused:
        Topology(rank=5, world_size=4, local_rank=3, local_world_size=2, node_rank=-1, launcher="srun")
    assert str(refused.value) == (
        "found by 'srun': rank 5 of a world of 4: expected 0 to 3;"
        " local rank 3 of 2 on this machine: expected 0 to 1; machine -1: expected 0 or more"
    )


def test_an_empty_world_is_refused() -> None:
    with pytest.raises(TopologyError, match="the world has 0 processes: expected at least 1"):
        Topology(world_size=0)


@settings(derandomize=True, deadline=None)
@given(*[st.integers(-3, 6)] * 5)
def test_it_is_made_exactly_when_its_ranks_are_in_range(
    rank: int, size: int, local_rank: int, local_size: int, node: int
) -> None:
    fits = 0 <= rank < size and 0 <= local_rank < local_size <= size and node >= 0
    if fits:
        assert Topology(rank, size, local_rank, local_size, node).world_size == size
    else:
        with pytest.raises(TopologyError):
            Topology(rank, size, local_rank, local_size, node)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(TopologyError, match=f"port {port} cannot be used to meet: expected 1 to 65535 in MASTER_PORT"):
        Rendezvous("localhost", port)


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(TopologyError, match="set MASTER_ADDR to the host of rank 0"):
        Rendezvous("", 29500)
