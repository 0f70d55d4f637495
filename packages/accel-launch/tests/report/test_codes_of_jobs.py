"""The exit code of a job, by how its processes ended."""

import signal

import pytest
from accel_launch.nodes.peers import NodeFailure
from accel_launch.report.job_result import JobResult, ProcessExit

ENDS = [(0, 0), (3, 3), (75, 75), (-signal.SIGKILL, 137), (-signal.SIGSEGV, 139), (-signal.SIGTERM, 143), (-34, 162)]


def ended(status: int, rank: int = 0) -> ProcessExit:
    return ProcessExit(rank, 9, status, ("x",))


@pytest.mark.parametrize(("status", "code"), ENDS)
def test_a_process_has_its_exit_code_or_128_and_the_signal(status: int, code: int) -> None:
    assert ended(status).code == code
    assert JobResult(2, ended(status)).code == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_job_that_a_signal_ended_has_128_and_that_signal(number: signal.Signals, code: int) -> None:
    assert JobResult(2, ended(-signal.SIGKILL), outside=number).code == code
    assert JobResult(2, ended(3), outside=number).code == 3, "a process that saves and says so has its own code"
    assert JobResult(2, outside=number).code == 0, "all processes have saved and ended well"


def test_a_failure_of_another_machine_gives_its_code() -> None:
    there = NodeFailure(1, "node2", "", 137)
    assert JobResult(4, ended(3), elsewhere=there).code == 137
    assert JobResult(4, elsewhere=there).code == 137
    assert JobResult(4, ended(-signal.SIGTERM), elsewhere=there, outside=signal.SIGTERM).code == 143
