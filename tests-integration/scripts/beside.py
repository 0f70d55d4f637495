"""Jobs beside one another on one disk: they save, and resume what another job saves, and list whatever went wrong."""

import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from accel.utils import ProjectConfiguration
from accel_checkpoint import CheckpointError
from accel_checkpoint.pieces import held_part
from torch import distributed, nn

#: no job saves more often
MOST = 1_000_000


class Number:
    """The number of the state, beside the weights that have it too."""

    value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "tensor": torch.full((9,), float(self.value))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["tensor"].unique().tolist() == [float(state["value"])], "mixed"
        self.value = state["value"]


class Job:
    """A process that is a job of its own, or, with `ranks`, one of its ranks; `words` has what it was warned of."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: int | None = None,
        place: int = 0,
        rank: int = 0,
        ranks: int = 1,
        strategy: str = "auto",
    ) -> None:
        here, of = str(rank), str(ranks)
        os.environ |= {"RANK": here, "WORLD_SIZE": of, "LOCAL_RANK": here, "LOCAL_WORLD_SIZE": of}
        os.environ.pop("MASTER_ADDR", None)  # the group is there when the Accelerator is made
        if ranks > 1:
            store = f"file://{os.environ['ACCEL_TESTING_STORE']}/ranks-{place}"
            distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=limit)
        self.accelerator = Accelerator(cpu=True, project_config=project, strategy=strategy)
        self.model: Any = self.accelerator.prepare(nn.Linear(3, 3))
        self.number, self.words = Number(), list[str]()
        self.accelerator.register_for_checkpointing(self.number)
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.words.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("accel").addHandler(handler)

    def save(self, number: int, folder: Path | None = None) -> None:
        """Save a state with this number in all of it; in the background each third time."""
        self.number.value = number
        with torch.no_grad():
            for weights in self.model.parameters():
                weights.fill_(number)
        self.accelerator.save_state(folder, asynchronous=number % 3 == 0)

    def found(self, load: Callable[[], object]) -> int:
        """Load a state, and return the number that all of it has."""
        load()
        parts: list[Any] = [held_part(weights) for weights in self.model.parameters()]
        numbers = {value for part in parts for value in part.unique().tolist()}
        assert numbers == {float(self.number.value)}, ("mixed", numbers, self.number.value)
        return self.number.value

    def agreed(self) -> set[int]:
        """Return the numbers that the ranks have loaded: all of them the same, or several."""
        told: list[list[int]] = self.accelerator.gather(torch.tensor([[self.number.value]])).tolist()
        return {number for number, *_ in told}

    def worrying(self) -> list[str]:
        """Return the warnings of a damaged checkpoint, and of what could not be removed."""
        return [words for words in self.words if "damaged" in words or "could not" in words]


def wrong(work: Callable[[], object]) -> list[str]:
    """Do the work, and return why it failed."""
    try:
        work()
    except (CheckpointError, OSError, AssertionError) as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def save_beside(folder: Path, saves: int, own: bool, named: bool, limit: int | None, ranks: int = 1) -> list[str]:
    """Save as job number RANK: into a folder of its `own`, or into one with others; by name, or with numbers.

    With several `ranks` each so many processes are a job, whose model is sharded over them. Each load after a save
    finds a whole state: the own one, or one of any job that shares the folder.
    """
    place, rank = divmod(int(os.environ["RANK"]), ranks)
    strategy = "fsdp2" if ranks > 1 else "auto"
    where = folder / f"exp{place}" if own and not named else folder
    job = Job(where, limit=limit, place=place, rank=rank, ranks=ranks, strategy=strategy)
    target = (folder / f"exp{place if own else ''}") if named else None
    problems = list[str]()
    for count in range(1, saves + 1):
        number = place * MOST + count
        problems += wrong(partial(job.save, number, target))
        if count % 5 == 0:
            problems += wrong(job.accelerator.wait_for_checkpoint)
            problems += wrong(partial(check, job, target, number if own else 0))
    problems += wrong(job.accelerator.wait_for_checkpoint)
    return [*problems, *job.worrying()]


def check(job: Job, target: Path | None, number: int) -> None:
    """Load what was saved, with this number, or with any, and the same on all ranks."""
    try:
        found = job.found(lambda: job.accelerator.load_state(target))
    finally:
        agreed = job.agreed()
    assert number in (0, found), (number, found)
    assert len(agreed) == 1, agreed


def resume_beside(folder: Path, resumes: int, ranks: int) -> list[str]:
    """Resume, on some ranks, what the process with the highest RANK saves with `total_limit=1` until they end."""
    place, done = int(os.environ["RANK"]), folder / "done"
    if place == ranks:
        saver, problems, count = Job(folder, limit=1), list[str](), 0
        while not done.exists():
            count += 1
            problems += wrong(partial(saver.save, count))
        problems += wrong(saver.accelerator.wait_for_checkpoint)
        return [*problems, *saver.worrying()]
    job, problems, newest = Job(folder, rank=place, ranks=ranks), list[str](), 0
    while not any((folder / "checkpoints").glob("checkpoint_*")):
        pass
    for _ in range(resumes):
        problems += wrong(lambda: job.found(job.accelerator.resume))
        found = job.agreed()
        problems += [] if len(found) == 1 and min(found) >= newest else [f"ranks found {found} after {newest}"]
        newest = max(found)
    if place == 0:
        done.touch()
    return [*problems, *job.worrying()]


def die_beside(folder: Path, lives: int) -> list[str]:
    """Save into one folder with a process that is killed in its saves, again and again."""
    if int(os.environ["RANK"]):
        return save_beside(folder, 4 * lives, own=False, named=True, limit=None)
    job, problems = Job(folder), list[str]()
    for life in range(lives):
        pid = os.fork()
        if not pid:
            signal.setitimer(signal.ITIMER_REAL, 0.001 + life % 50 / 1000)
            while not wrong(partial(job.save, 3 * life + 1, folder / "exp")):
                pass
            os._exit(1)
        ended = os.waitpid(pid, 0)[1]
        problems += [] if ended == signal.SIGALRM else [f"life {life} ended with {ended}"]
    return problems
