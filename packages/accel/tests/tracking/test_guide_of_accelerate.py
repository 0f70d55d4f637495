"""Programs as Accelerate's guide to tracking has them: what a user changes is the import."""

from pathlib import Path
from typing import Any

import pytest
from accel_testing import MakePool

pytest.importorskip("tensorboard", reason="tensorboard is not installed")

#: settings, a loop that logs, a writer that is asked for, and the end
INTEGRATED = """
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, LoggerType
import torch

project = ProjectConfiguration(project_dir=FOLDER, logging_dir=f"{FOLDER}/events")
accelerator = Accelerator(log_with=LOGGERS, project_config=project, cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.utils.data.DataLoader(torch.ones(20, 1), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
settings = {"num_iterations": 5, "learning_rate": 1e-2, "loss_function": "square"}
accelerator.init_trackers("my_project", config=settings, init_kwargs={"tensorboard": {"flush_secs": 30}})
for iteration, batch in zip(range(5), data):
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"training_loss": loss, "iteration": float(iteration)}, step=iteration)
writer = accelerator.get_tracker("tensorboard", unwrap=True)
if accelerator.is_main_process:
    writer.add_scalar("own", 7.0, 0)
accelerator.get_tracker("tensorboard").log({"by_the_tracker": 3.0}, step=0)
accelerator.end_training()
"""

#: a tracker of one's own, whose constructor runs on the main process alone, beside a name
OWN = """
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from typing import Optional

class MyTracker(GeneralTracker):
    name = "mine"
    requires_logging_directory = False

    @on_main_process
    def __init__(self, run_name):
        self.run_name = run_name
        self.lines = []
        super().__init__()

    @property
    def tracker(self):
        return self.lines

    @on_main_process
    def store_init_configuration(self, values):
        self.lines.append(("config", values))

    @on_main_process
    def log(self, values, step: Optional[int] = None, **kwargs):
        self.lines.append((step, values, kwargs))

tracker = MyTracker("some_run")
accelerator = Accelerator(log_with=[tracker, "tensorboard"], project_dir=FOLDER, cpu=True)
accelerator.init_trackers("own_project", config={"lr": 1})
accelerator.log({"loss": 0.5}, step=1, log_kwargs={"mine": {"commit": True}})
accelerator.log({"loss": 0.25})
mine = accelerator.get_tracker("mine", unwrap=True) if accelerator.is_main_process else None
accelerator.end_training()
"""


def run(program: str, folder: Path, loggers: Any = None) -> Any:
    """What the variable `mine` of the program has when it has ended."""
    scope = {"FOLDER": str(folder), "LOGGERS": loggers}
    exec(program.replace("from accelerate", "from accel"), scope)
    return scope.get("mine")


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


@pytest.mark.parametrize("loggers", ["tensorboard", ["tensorboard", "local"]])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_loop_that_logs(world: MakePool, tmp_path: Path, processes: int, loggers: Any) -> None:
    """S131: each value once, however many processes."""
    world(processes).run(run, INTEGRATED, tmp_path, loggers)
    found = events(tmp_path / "events" / "my_project")
    assert found["iteration"] == [(step, float(step)) for step in range(5)]
    assert [step for step, _ in found["training_loss"]] == list(range(5))
    assert (found["own"], found["by_the_tracker"]) == ([(0, 7.0)], [(0, 3.0)])


@pytest.mark.parametrize("processes", [1, 2])
def test_a_tracker_of_ones_own(world: MakePool, tmp_path: Path, processes: int) -> None:
    """S131."""
    mine, *others = world(processes).run(run, OWN, tmp_path)
    assert mine == [("config", {"lr": 1}), (1, {"loss": 0.5}, {"commit": True}), (None, {"loss": 0.25}, {})]
    assert others == [None] * (processes - 1)
    assert events(tmp_path / "own_project") == {"loss": [(1, 0.5), (2, 0.25)]}
