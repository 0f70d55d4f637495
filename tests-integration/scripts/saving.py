"""A job that does nothing but save, numbers its states, and says which of them are acknowledged.

saving.py PLAN-AS-JSON
"""

import json
import os
import resource
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_amp import local_part
from accel_checkpoint import CheckpointError
from torch import Tensor, nn

ROOM = 1 << 18


@dataclass(frozen=True)
class Plan:
    """One life: where it saves (`limit` 0: into one folder again and again), and how often, and when it is killed."""

    folder: str
    limit: int = 1
    width: int = 256
    saves: int = 1000
    killed: int | None = None
    after_s: float = 0.0
    #: the save at which the disk is full: files are no larger than ROOM from then on
    full_at: int | None = None
    behind: bool = True
    strategy: str = "auto"


class Number:
    """The number of the state, as a tensor and as a number."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "tensor": torch.full((1000,), float(self.number))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]
        assert state["tensor"].unique().tolist() == [float(self.number)]


def acknowledged(folder: Path) -> int:
    """The newest state whose save has returned on the main process, or of which a later call has said nothing."""
    path = folder / "acknowledged"
    return int(path.read_text() or 0) if path.exists() else 0


def begun(folder: Path) -> int:
    path = folder / "begun"
    return int(path.read_text() or 0) if path.exists() else 0


def say(path: Path, number: int) -> None:
    aside = path.with_suffix(".partial")
    aside.write_text(str(number))
    os.replace(aside, path)


def tensors_of(model: nn.Module, optimizer: Any) -> list[Tensor]:
    moments = [entry[name] for entry in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [local_part(tensor.detach()) for tensor in (*model.parameters(), *moments)]


def fill(model: nn.Module, optimizer: Any, number: int) -> None:
    with torch.no_grad():
        for one in tensors_of(model, optimizer):
            one.fill_(number)


def save(plan: Plan) -> tuple[int, list[str]]:
    """The number of the state that it went on from, and what is beside the checkpoints after its first save.

    Raises: AssertionError when what was loaded is not one state, or one that is too old.
    """
    folder = Path(plan.folder)
    named = plan.limit > 0
    project = ProjectConfiguration(folder, automatic_checkpoint_naming=named, total_limit=plan.limit or None)
    accelerator = Accelerator(cpu=True, project_config=project, strategy=plan.strategy)
    model: Any = nn.Sequential(*(nn.Linear(plan.width, plan.width) for _ in range(3)))
    optimizer: Any = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    number = Number()
    accelerator.register_for_checkpointing(number)
    accelerator.backward(model(torch.ones(2, plan.width)).sum())
    optimizer.step()
    place = None if named else folder / "latest"
    least, most = acknowledged(folder), begun(folder)
    accelerator.wait_for_everyone()
    if least:
        accelerator.load_state(place)
    elif most:
        try:
            accelerator.load_state(place)
        except CheckpointError:
            number.number = 0
    if number.number:
        found = {value for one in tensors_of(model, optimizer) for value in one.unique().tolist()}  # type: ignore[no-untyped-call]
        assert found == {number.number}, (found, number.number)
    assert least <= number.number <= max(most, least), (least, number.number, most)
    loaded, left = number.number, list[str]()
    if plan.killed == accelerator.process_index:
        timer = threading.Timer(plan.after_s, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
    for count in range(1, plan.saves + 1):
        number.number = loaded + count
        fill(model, optimizer, number.number)
        if accelerator.is_main_process:
            say(folder / "begun", number.number)
        accelerator.wait_for_everyone()
        if count == plan.full_at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
        behind = plan.behind and number.number % 2 == 0
        accelerator.save_state(place, asynchronous=behind)
        if accelerator.is_main_process:
            # an asynchronous call says that all before it are on the disk
            say(folder / "acknowledged", number.number - behind)
        if count == 1 and plan.killed is None:
            accelerator.wait_for_checkpoint()
            left = [one.name for one in (folder / "checkpoints" if named else folder).iterdir()]
    accelerator.wait_for_checkpoint()
    return loaded, left


def main() -> None:
    save(Plan(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
