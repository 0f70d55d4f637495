"""The mesh of processes is arithmetic."""

from accel_state.mesh import Axis, MeshSpec
from hypothesis import given
from hypothesis import strategies as st

sizes = st.integers(1, 5)


@given(sizes, sizes, sizes)
def test_each_rank_has_a_place_of_its_own_and_neighbours_share_layers(replicate: int, shard: int, tensor: int) -> None:
    mesh = MeshSpec(replicate, shard, tensor)
    places = [tuple(mesh.coordinate(rank).values()) for rank in range(mesh.world_size)]
    assert places == sorted(set(places))
    assert len(places) == replicate * shard * tensor
    for rank, (replica, part, _) in enumerate(places):
        assert mesh.data_rank(rank) == replica * shard + part
    assert {mesh.data_rank(rank) for rank in range(mesh.world_size)} == set(range(mesh.data_size))


def test_the_coordinate_is_named_by_axis() -> None:
    assert MeshSpec(2, 1, 2).coordinate(3) == {Axis.REPLICATE: 1, Axis.SHARD: 0, Axis.TENSOR: 1}


def test_a_mesh_of_another_size_than_the_world_is_told_with_the_numbers() -> None:
    assert MeshSpec(shard=2, tensor=2).problems(4) == []
    (line,) = MeshSpec(shard=2, tensor=2).problems(2)
    assert "dp_replicate 1 x dp_shard 2 x tp 2" in line
    assert "4 processes" in line
    assert "has 2" in line
    assert len(MeshSpec(0, -1, 2).problems(2)) == 2
