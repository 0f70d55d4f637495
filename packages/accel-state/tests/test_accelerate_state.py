from functools import partial

import pytest
import torch
from accel_comm import NoRun
from accel_state import AcceleratorState, PartialState, RunConflict
from accel_testing import MakePool


def test_all_views_show_one_run() -> None:
    """Feature row S120."""
    state, accelerator_state = PartialState(cpu=True), AcceleratorState()
    assert state.run is accelerator_state.run is PartialState().run
    assert (state.num_processes, state.process_index, str(state.distributed_type)) == (1, 0, "NO")
    assert state.initialized is accelerator_state.initialized is True
    assert state.device == torch.device("cpu")


def test_a_view_shows_the_precision_that_is_settled_later() -> None:
    """Feature row S120."""
    first = AcceleratorState(cpu=True)
    assert first.mixed_precision == "no"
    AcceleratorState(mixed_precision="fp16")
    assert first.mixed_precision == "fp16"
    with pytest.raises(RunConflict, match="mixed_precision='fp16'"):
        AcceleratorState(mixed_precision="bf16")


def test_a_view_is_printed_as_who_the_process_is() -> None:
    """Feature row S120: in the lines that Accelerate prints."""
    lines = ["Distributed environment: NO", "Num processes: 1", "Process index: 0", "Local process index: 0"]
    lines.append("Device: cpu")
    assert str(PartialState(cpu=True)).splitlines() == lines
    assert str(AcceleratorState(mixed_precision="bf16")).splitlines() == [*lines, "Mixed precision type: bf16"]


def shown() -> str:
    return str(AcceleratorState(cpu=True))


def test_each_process_shows_its_own_rank(world: MakePool) -> None:
    """Feature row S120."""
    for rank, text in enumerate(world(2).run(shown)):
        assert f"MULTI_CPU\nNum processes: 2\nProcess index: {rank}\nLocal process index: {rank}\n" in text


def test_libraries_may_ask_for_another_precision_after_a_reset() -> None:
    """S180: Transformers resets the state whenever it makes arguments of a training."""
    assert PartialState._shared_state == {}
    first = AcceleratorState(cpu=True, mixed_precision="bf16")
    assert AcceleratorState._shared_state != {}
    AcceleratorState._reset_state(reset_partial_state=True)
    assert AcceleratorState(mixed_precision="fp16").mixed_precision == first.mixed_precision == "fp16"
    assert first.mixed_precision == "fp16"


def of_a_job() -> tuple[bool, int]:
    state = PartialState(cpu=True)
    PartialState._reset_state()
    return state.initialized, state.num_processes


def test_a_reset_lets_a_lone_process_ask_for_a_run_anew(world: MakePool) -> None:
    """What holds the old run goes on in it. The processes of a job stay together."""
    state = PartialState(cpu=True)
    for reset in (PartialState._reset_state, partial(AcceleratorState._reset_state, True)):
        before = state.run
        reset()
        assert PartialState._shared_state == {}
        assert (state.initialized, state.num_processes) == (False, 1)
        assert PartialState(cpu=True).run is not before
        assert state.initialized
    assert world(2).run(of_a_job) == [(True, 2)] * 2


def test_a_view_without_a_run_says_so() -> None:
    state = PartialState(cpu=True)
    other = AcceleratorState()
    state.destroy_process_group()
    assert [str(one) for one in (state, other)] == [
        "PartialState of a process that has no run",
        "AcceleratorState of a process that has no run",
    ]
    assert state.initialized is False
    with pytest.raises(NoRun, match="has no run yet"):
        state.num_processes  # noqa: B018 # the look raises
