"""The memory of a rehearsed device over time."""

from accel_rehearse.allocations import ACTIVATIONS, PARAMETERS, Allocations, Block, Change
from accel_rehearse.stage import SCRIPT, Stage
from hypothesis import given
from hypothesis import strategies as st

CHANGES = st.lists(st.tuples(st.sampled_from([PARAMETERS, ACTIVATIONS]), st.integers(-50, 100)), min_size=1)


@given(changes=CHANGES, begin=st.integers(0, 10), points=st.integers(1, 80))
def test_a_picture_of_memory_has_its_highest_point(changes: list[tuple[str, int]], begin: int, points: int) -> None:
    """A peak between two columns is what the picture is looked at for."""
    found = Allocations(Stage(), apart=False)
    found.changes = [Change(Block("", kind=kind), more, 0, SCRIPT, "") for kind, more in changes]
    begin = min(begin, len(changes))
    sizes = [sum(more for _, more in changes[:count]) for count in range(begin, len(changes) + 1)]
    curve = found.over(begin, len(changes), points)
    assert len(curve) <= points
    assert max(sum(at.values()) for at in curve) == max(sizes)
