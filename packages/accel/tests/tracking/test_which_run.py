"""In which run the trackers go on after a checkpoint was loaded."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator
from accel.tracking import GeneralTracker
from accel_checkpoint import CheckpointError
from accel_state import release
from accel_testing import MakePool
from accel_track.local.lines import entries


def accelerator_in(folder: Path) -> Accelerator:
    accelerator = Accelerator(cpu=True, project_dir=folder, log_with="local")
    accelerator.prepare(torch.nn.Linear(1, 1))
    accelerator.init_trackers("project")
    return accelerator


def trained(folder: Path) -> Path:
    """The folder of a finished run of five steps, whose checkpoint was taken after two."""
    accelerator = accelerator_in(folder)
    for step in range(5):
        accelerator.log({"loss": step}, step=step)
        if step == 1:
            accelerator.save_state(folder / "checkpoints" / "checkpoint_0")
    run: Path = accelerator.get_tracker("local", unwrap=True).folder
    accelerator.end_training()
    release()
    return run


def steps(run: Path) -> list[int]:
    return [entry["step"] for entry in entries(run / "metrics.jsonl")]


def test_load_state_leaves_a_run_that_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S135: what is evaluated or tuned further from its checkpoint is a run of its own."""
    run = trained(tmp_path)
    accelerator = accelerator_in(tmp_path)
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    assert f"begins a new run: the run {run.name} of the checkpoint has ended" in caplog.text
    accelerator.log({"accuracy": 0.5}, step=0)
    other = accelerator.get_tracker("local", unwrap=True).folder
    accelerator.end_training()
    assert steps(run) == [0, 1, 2, 3, 4]
    assert (other != run, steps(other)) == (True, [0])


@pytest.mark.parametrize("start_first", [True, False])
def test_resume_goes_on_in_a_run_that_has_ended(tmp_path: Path, start_first: bool) -> None:
    """S135: once; the next run of the process is new, and no line is lost."""
    run = trained(tmp_path)
    if start_first:
        accelerator = accelerator_in(tmp_path)
        accelerator.resume()
    else:
        accelerator = Accelerator(cpu=True, project_dir=tmp_path, log_with="local")
        accelerator.prepare(torch.nn.Linear(1, 1))
        accelerator.resume()
        accelerator.init_trackers("project")
    accelerator.log({"loss": 20}, step=2)
    accelerator.get_tracker("local")
    story = json.loads((run / "run.json").read_text())
    assert (story["state"], story["ended"]) == ("running", None)
    accelerator.end_training()
    accelerator.init_trackers("project")
    accelerator.log({"other": 1}, step=0)
    accelerator.end_training()
    assert steps(run) == [0, 1, 2]
    assert [entry["metrics"]["loss"] for entry in entries(run / "metrics.jsonl.given-up-1")] == [2, 3, 4]


def test_a_log_before_load_state_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained(tmp_path)
    accelerator = accelerator_in(tmp_path)
    accelerator.log({"baseline": 1}, step=0)
    with caplog.at_level(logging.WARNING, "accel"):
        accelerator.resume()
    own = accelerator.get_tracker("local", unwrap=True).folder.name
    accelerator.end_training()
    assert f"stays in its run {own}" in caplog.text
    assert f"does not go on in the run {run.name} of the checkpoint" in caplog.text
    assert steps(run) == [0, 1, 2, 3, 4]


HOLDER = """
import sys, time
from pathlib import Path
from accel_track.local.record import RunRecord
record = RunRecord(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(120)
"""


def resumed(folder: Path) -> tuple[str, float]:
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, project_dir=folder, log_with="local")
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    accelerator.init_trackers("project")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        accelerator.resume()
    except CheckpointError as error:
        return str(error), all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return "", False


def test_a_record_that_another_process_writes_is_told_on_all_ranks(world: MakePool, tmp_path: Path) -> None:
    """S135: and nothing is loaded."""
    run = trained(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        answers = world(2).run(resumed, tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    for problem, unchanged in answers:
        assert "another process writes the record" in problem
        assert unchanged
    assert steps(run) == [0, 1, 2, 3, 4]


class Every(GeneralTracker):
    name = "every"
    requires_logging_directory = False
    main_process_only = False
    tracker: Any = property(lambda self: self)
    run = ""

    def start(self) -> None:
        from accel_state import PartialState

        self.run = f"run of rank {PartialState().process_index}"

    def state_dict(self) -> dict[str, Any]:
        return {"run": self.run}

    def resume(self, state: Any) -> None:
        self.run = state["run"]


def every(folder: Path) -> str:
    accelerator = Accelerator(cpu=True, log_with=[tracker := Every()])
    accelerator.prepare(torch.nn.Linear(1, 1))
    accelerator.init_trackers("project")
    accelerator.save_state(folder / "checkpoint")
    accelerator.load_state(folder / "checkpoint")
    accelerator.end_training()
    return tracker.run


def test_no_rank_goes_on_in_the_run_of_another(world: MakePool, tmp_path: Path) -> None:
    assert world(2).run(every, tmp_path) == ["run of rank 0", "run of rank 1"]
