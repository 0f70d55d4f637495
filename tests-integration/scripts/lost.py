"""Rank 1 ends, in one of several ways, while rank 0 waits in one of several places."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from accel import Accelerator, InitProcessGroupKwargs
from torch.utils.data import DataLoader, Dataset

#: seconds that a wait may last for a process that is stopped, and for others, whose end comes before
FACTOR = float(os.environ.get("ACCEL_TESTING_TIME_FACTOR") or 1)
LIMIT_S, LONG_S = 5 * FACTOR, 90 * FACTOR


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(600)
        return torch.ones(1)


def wait(accelerator: Accelerator, where: str) -> None:
    if where == "reduce":
        accelerator.reduce(torch.ones(2))  # reduce
    elif where == "barrier":
        accelerator.wait_for_everyone()  # barrier
    elif where == "caught":
        try:
            accelerator.reduce(torch.ones(2))
        except RuntimeError as error:
            time.sleep(6)  # writes a checkpoint of its own
            print("saved after", type(error).__name__)
    else:
        for _ in DataLoader(Slow(), num_workers=where == "workers"):
            pass


def fail(how: str, file: Path) -> None:
    time.sleep(1)
    file.write_text(str(time.time()))
    if how == "raises":
        raise LookupError("the sample that nobody has")
    if how == "exits":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    time.sleep(600)


if __name__ == "__main__":
    how, where, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    limit = InitProcessGroupKwargs(timeout=timedelta(seconds=LIMIT_S if how == "stopped" else LONG_S))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[limit])
    accelerator.wait_for_everyone()
    if accelerator.process_index == 1:
        fail(how, file)
    else:
        wait(accelerator, where)
