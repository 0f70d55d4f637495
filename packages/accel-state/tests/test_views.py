import pytest
import torch
from accel_state import AcceleratorState, NoRun, PartialState, RunConflict


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


def test_a_view_without_a_run_says_so() -> None:
    state = PartialState(cpu=True)
    state.destroy_process_group()
    assert state.initialized is False
    with pytest.raises(NoRun, match="has no run yet"):
        state.num_processes  # noqa: B018
