"""What the main process does before the others, who wait for it."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from accel import Accelerator, InitProcessGroupKwargs

#: for limits, and for work that outlasts them
FACTOR = float(os.environ.get("ACCEL_TESTING_TIME_FACTOR") or 1)


def limited(seconds: float) -> Accelerator:
    limit = InitProcessGroupKwargs(timeout=timedelta(seconds=seconds * FACTOR))
    return Accelerator(cpu=True, kwargs_handlers=[limit])


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # in one piece, whoever else writes


def works(seconds: str) -> None:
    """A limit of 3 s, and more work than that: in the block of all, and in that of a machine."""
    accelerator = limited(3)
    for first, pause in ((accelerator.main_process_first, 1.0), (accelerator.local_main_process_first, 0.5)):
        with first():
            if accelerator.is_main_process:
                time.sleep(float(seconds) * pause * FACTOR)
            say("first" if accelerator.is_main_process else "later")
    say(f"sum {int(accelerator.reduce(torch.ones(1), 'sum'))}")


def nested(seconds: str) -> None:
    accelerator = limited(3)
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        if accelerator.is_main_process:
            time.sleep(float(seconds) * FACTOR)
        say("first" if accelerator.is_main_process else "later")


def fails(how: str, file: str) -> None:
    accelerator = limited(90)
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            time.sleep(1)
            Path(file).write_text(str(time.time()))
            if how == "raises":
                raise KeyError("no such data set")
            os.kill(os.getpid(), signal.SIGKILL)
    say("not here")


def gathers(limit: str) -> None:
    accelerator = limited(float(limit))
    with accelerator.main_process_first():  # gathers later
        if accelerator.is_main_process:
            accelerator.gather(torch.ones(1))  # gathers first


def machines(seconds: str) -> None:
    """Two processes on each of two machines, as far as the script can know."""
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2", GROUP_RANK=str(rank // 2))
    accelerator = limited(30)
    with accelerator.local_main_process_first():
        if rank == 0:
            time.sleep(float(seconds) * FACTOR)
    say("done")


def calm(seed: str) -> None:
    """200 exchanges; some ranks are late for some of them, and for one by so much that the watchdog looks into it."""
    accelerator = limited(20)
    chance = torch.Generator().manual_seed(int(seed))  # the same on all
    rank, size = accelerator.process_index, accelerator.num_processes
    for step in range(200):
        kind, late, pause = torch.randint(1000, (3,), generator=chance).tolist()
        if late % size == rank:
            time.sleep(4 if step == 100 else pause / 50_000)
        if kind % 5 == 0:
            accelerator.wait_for_everyone()
        elif kind % 5 == 1:
            accelerator.gather(torch.ones(kind, 2))
        elif kind % 5 == 2:
            accelerator.reduce(torch.ones(kind * (100 if kind % 2 else 1)), "sum")
        elif kind % 5 == 3:
            accelerator.gather_for_metrics([rank] * (rank + 1))
        else:
            with accelerator.main_process_first():
                time.sleep(0.001)
    say("calm")


PROGRAMS = {one.__name__: one for one in (works, nested, fails, gathers, machines, calm)}


if __name__ == "__main__":
    program, *arguments, _ = sys.argv[1:]
    PROGRAMS[program](*arguments)
