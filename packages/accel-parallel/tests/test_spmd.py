"""How parameters are divided over the devices of one process, and when that is refused."""

import pytest
from accel_amp import PRECISIONS, PrecisionPolicy
from accel_comm.transports.single import Single
from accel_parallel.strategies.spmd import Spmd, longest_divisible
from accel_state import Run, Topology
from accel_state.devices.cpu import Cpu
from hypothesis import given
from hypothesis import strategies as st
from torch import device, nn


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 8))
def test_the_longest_dimension_that_devices_divide_is_divided(shape: list[int], parts: int) -> None:
    dim = longest_divisible(shape, parts)
    divisible = [length for length in shape if length and length % parts == 0]
    assert (dim is None) == (not divisible)
    assert dim is None or shape[dim] == max(divisible)


def test_other_processes_and_other_devices_are_told_at_once() -> None:
    """A9: SPMD beside a process group."""
    run = Run(Topology(world_size=2, local_world_size=2), Cpu(), device("cpu"), Single())
    problems = Spmd().check(run, PRECISIONS.load("no")())
    assert [problem.split(";")[0] for problem in problems] == [
        "it divides work over XLA devices, and this process is on cpu",
        "one process drives all devices, and this job has 2",
    ]


def test_compiled_models_and_models_without_weights_are_refused() -> None:
    run = Run(Topology(), Cpu(), device("cpu"), Single())
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"torch\.compile with several XLA devices"):
        Spmd().setup(model, run, PrecisionPolicy())
    with pytest.raises(ValueError, match="Linear has 2 parameters on the meta device"):
        Spmd().setup(nn.Linear(2, 2, device="meta"), run, PrecisionPolicy())
