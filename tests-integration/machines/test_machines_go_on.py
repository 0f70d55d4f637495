"""Two machines, one of which is killed whole: the other goes on alone, from its memory, to the same weights."""

import json
import os
import re
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import in_memory
import pytest
import torch
from in_memory import STEPS, Plan
from jobs import ACCEL, Ended, Job, start
from namespaces import Machines

SCRIPT = Path(in_memory.__file__)
#: seconds that machines wait for each other, at the start and when one is lost
WAIT_S = 12
FLAGS = ("--memory_checkpoint_every", 5, "--max_restarts", 2, "--rdzv_backend", "c10d", "--min_machines", 1)


def flags(machines: Machines, number: int, processes: int) -> list[object]:
    memory = machines.folder / f"memory-{number}"  # the machines of this test have one tmpfs
    return [*FLAGS, "--memory_checkpoint_dir", memory, "-n", processes]


def start_both(machines: Machines, plan: Plan, processes: int) -> tuple[Job, Job]:
    told = json.dumps(asdict(plan))
    one = machines.start(1, *machines.place(1), "--join_timeout", WAIT_S, *flags(machines, 1, processes), SCRIPT, told)
    zero = machines.start(0, *machines.place(0), "--join_timeout", WAIT_S, *flags(machines, 0, processes), SCRIPT, told)
    return zero, one


def kill(machines: Machines, number: int) -> None:
    """Kill all that runs on a machine at once, its launcher and its orphan killer too."""
    for pid in machines.processes(number):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for pid in machines.processes(number):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def steps_done(plan: Plan, rank: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((Path(plan.folder) / f"at-{rank}").read_text().split()[0])
    return 0


def resumed_at(ended: Ended) -> list[int]:
    return [int(step) for step in re.findall(r"resumed from the checkpoint \S+, in memory: step (\d+), ", ended.err)]


def resized_there(python: str, folder: Path, step: int, processes: int, **settings: Any) -> Any:
    """What a job ends with that was stopped at that step, and went on with the processes of one machine."""
    plan = Plan(str(folder / "resized"), [[0, step + 1, "forward"]], saves_at=step, **settings)
    for size, code in ((processes, 128 + signal.SIGKILL), (processes // 2, 0)):
        ended = start(SCRIPT, json.dumps(asdict(plan)), size=size, by=ACCEL, python=python).end()
        assert ended.code == code, ended.err
        plan = Plan(plan.folder, [], **settings)
    return json.loads((folder / "resized" / "done-0").read_text())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("strategy", ["auto", "fsdp2"])
def test_either_machine_goes_on_alone_from_its_memory(
    lost: int, strategy: str, machines: Machines, tmp_path: Path, forking_python: str
) -> None:
    """A2: equal to a run that was resized at the same step."""
    settings: dict[str, Any] = {"strategy": strategy, "double": True}
    plan = Plan(str(tmp_path / "job"), [], pause_s=0.1, **settings)
    (tmp_path / "job").mkdir()
    jobs = start_both(machines, plan, 2)
    machines.wait_for(lambda: steps_done(plan, 0) >= 13)
    kill(machines, lost)
    left = jobs[1 - lost].end(100)
    assert left.code == 0, left.err
    assert "goes on with 1 of 2 machines, as the others have not come within" in left.err
    (step,) = resumed_at(left)
    assert step >= 10
    found = json.loads((tmp_path / "job" / "done-0").read_text())
    assert (found["steps"], found["began"]) == (STEPS, step)
    expected = resized_there(forking_python, tmp_path, step, 2, **settings)
    for name, weights in expected["weights"].items():
        torch.testing.assert_close(torch.tensor(found["weights"][name]), torch.tensor(weights), rtol=0, atol=1e-12)
