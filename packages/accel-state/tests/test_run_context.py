"""The one run of this process: started once, shared, and agreed with."""

import sys

import pytest
import torch
from accel_comm import NoRun
from accel_comm.transports.single import Single
from accel_state import Run, RunConflict, RunRequest, Topology, TopologyError, acquire, current, is_initialized, release
from accel_state.devices.cpu import Cpu
from accel_state.run_context import ask_anew

CPU = RunRequest(cpu=True)


@pytest.fixture
def elsewhere() -> Run:
    """A run on a device that is not the CPU."""
    return Run(Topology(), Cpu(), torch.device("meta"), Single(), "bf16")


def test_before_the_first_request_there_is_no_run() -> None:
    assert is_initialized() is False
    with pytest.raises(NoRun, match=r"no run yet; create an Accelerator\(\) or a PartialState\(\) first"):
        current()


def test_the_second_request_gets_the_run_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feature row S120: the second construction does not start anything again."""
    first = acquire(CPU)
    module = sys.modules["accel_state.run_context"]
    monkeypatch.setattr(module, "_start", lambda request: pytest.fail("it was started a second time"))
    assert acquire(CPU) is first
    assert acquire(RunRequest()) is first
    assert current() is first
    assert is_initialized() is True


def test_a_later_request_may_settle_the_precision_once() -> None:
    acquire(CPU)
    assert acquire(RunRequest(precision="bf16")).precision == "bf16"
    assert current().precision == "bf16"
    assert acquire(CPU).precision == "bf16"


def test_another_precision_is_a_conflict_that_names_the_field() -> None:
    """Feature row S120."""
    first = acquire(RunRequest(cpu=True, precision="bf16"))
    with pytest.raises(RunConflict) as refused:
        acquire(RunRequest(precision="fp16"))
    assert str(refused.value) == (
        "this process already runs with mixed_precision='bf16' (now asked: 'fp16');"
        " ask for the same everywhere, or only the first time"
    )
    assert current() is first


def test_all_conflicts_are_named_at_once(elsewhere: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["accel_state.run_context"], "_process", elsewhere)
    with pytest.raises(RunConflict) as refused:
        acquire(RunRequest(cpu=True, precision="no"))
    assert "device='meta' (now asked: 'cpu') and mixed_precision='bf16' (now asked: 'no')" in str(refused.value)


def test_silence_agrees_with_everything(elsewhere: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["accel_state.run_context"], "_process", elsewhere)
    assert acquire(RunRequest()) is elsewhere


def test_a_request_that_fails_leaves_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(TopologyError, match="WORLD_SIZE is missing"):
        acquire(CPU)
    assert is_initialized() is False


def test_after_release_the_next_request_starts_anew() -> None:
    first = acquire(CPU)
    release()
    assert is_initialized() is False
    assert acquire(CPU) is not first
    release()
    release()


def test_a_reset_holds_until_something_is_asked_for() -> None:
    """A thread from before may ask for the run at any time, and would start another on another device."""
    first = acquire(CPU)
    ask_anew(start=True)
    ask_anew()
    assert not is_initialized()
    assert acquire(RunRequest()).transport is first.transport
    ask_anew(start=True)
    ask_anew()
    assert acquire(CPU).transport is not first.transport
    assert is_initialized()
