"""Programs in which two processes do not do the same; a comment marks the line that each of them is at."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from accel import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from torch.utils.data import DataLoader, Dataset

LIMIT_S = 5 * float(os.environ.get("ACCEL_TESTING_TIME_FACTOR") or 1)


class Slow(Dataset[torch.Tensor]):
    """Takes a minute for its second sample on rank 1."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rank == 1 and index == 1:
            time.sleep(600)  # loader 1
        return torch.ones(1)


def gather_alone(accelerator: Accelerator) -> None:
    if accelerator.is_main_process:
        accelerator.gather(torch.ones(2))  # gather_alone 0
    accelerator.wait_for_everyone()  # gather_alone 1


def order(accelerator: Accelerator) -> None:
    x = torch.ones(2)
    if accelerator.is_main_process:
        accelerator.gather(x)  # order 0
        accelerator.reduce(x)
    else:
        accelerator.reduce(x)  # order 1
        accelerator.gather(x)


def shape(accelerator: Accelerator) -> None:
    if accelerator.is_main_process:
        accelerator.reduce(torch.ones(4))  # shape 0
    else:
        accelerator.reduce(torch.ones(8))  # shape 1


def dtype(accelerator: Accelerator) -> None:
    if accelerator.is_main_process:
        accelerator.reduce(torch.ones(4))  # dtype 0
    else:
        accelerator.reduce(torch.ones(4, dtype=torch.float64))  # dtype 1


def loader(accelerator: Accelerator) -> None:
    for x in DataLoader(Slow(accelerator.process_index)):
        accelerator.gather(x)  # loader 0


def early_break(accelerator: Accelerator) -> None:
    for step in range(10):
        if accelerator.process_index == 1 and step == 5:
            break
        accelerator.reduce(torch.ones(1))  # early_break 0
    accelerator.wait_for_everyone()  # early_break 1


def break_to_the_end(accelerator: Accelerator) -> None:
    for step in range(10):
        if accelerator.process_index == 1 and step == 5:
            return
        accelerator.reduce(torch.ones(1))  # break_to_the_end 0, break_to_the_end 1


def barrier_in_else(accelerator: Accelerator) -> None:
    if accelerator.is_main_process:
        accelerator.print("saved")
    else:
        accelerator.wait_for_everyone()  # barrier_in_else 1
    accelerator.gather(torch.ones(1))  # barrier_in_else 0


def sleep(accelerator: Accelerator) -> None:
    if accelerator.process_index == 1:
        time.sleep(600)  # sleep 1
    accelerator.gather(torch.ones(1))  # sleep 0


def large(accelerator: Accelerator) -> None:
    """A message that is too long for the first one."""
    if accelerator.is_main_process:
        accelerator.reduce(torch.ones(100_000))  # large 0
    else:
        accelerator.reduce(torch.ones(100_001))  # large 1


def objects(accelerator: Accelerator) -> None:
    if accelerator.is_main_process:
        accelerator.gather([1, 2])  # objects 0
    else:
        accelerator.gather(torch.ones(2))  # objects 1


class Queued:
    """A reduce-scatter as of NCCL, where the host goes on, no size is compared, and the device hangs if they differ."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    def __call__(self, *, output_tensor: torch.Tensor, **_: Any) -> None:
        pass


class Branches(torch.nn.Module):
    """Two layers, of which the second may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        hidden: torch.Tensor = self.first(x)
        return self.second(hidden) if both else hidden


def branches(accelerator: Accelerator) -> None:
    """Parameters that rank 1 leaves out in the third backward; rank 0 waits for its device, which waits for rank 1."""
    model: Any = accelerator.prepare(Branches())
    model.set_custom_reduce_scatter(Queued())
    for step in range(3):
        loss = model(torch.ones(2, 4), accelerator.is_main_process or step < 2).sum()
        accelerator.backward(loss)  # branches 1
    if accelerator.is_main_process:
        time.sleep(600)  # branches 0


PROGRAMS = {
    one.__name__: one
    for one in (
        gather_alone,
        order,
        shape,
        dtype,
        loader,
        early_break,
        break_to_the_end,
        barrier_in_else,
        sleep,
        large,
        objects,
        branches,
    )
}


if __name__ == "__main__":
    limit = InitProcessGroupKwargs(timeout=timedelta(seconds=LIMIT_S))
    sharded = FullyShardedDataParallelPlugin(auto_wrap_policy="no_wrap") if sys.argv[1] == "branches" else None
    PROGRAMS[sys.argv[1]](Accelerator(cpu=True, kwargs_handlers=[limit], fsdp_plugin=sharded))
