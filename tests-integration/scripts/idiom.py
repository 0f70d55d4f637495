"""A script in the checkpoint idiom of Accelerate's examples: step_N is saved in the loop, and gone on from by N alone.

idiom.py FOLDER KIND [--from step_N] [--stop N] [--continue]

With --continue it leaves out what was trained by `continue`, and else by skip_first_batches.

It prints a line for each batch that it trains on: the step, the epoch of the script and the samples of the job.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accel import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

EPOCHS, SAMPLES = 2, 12


class Stream(IterableDataset[Tensor]):
    """Twelve numbers, of which a shard is every n-th."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def shard(self, num_shards: int, index: int) -> "Stream":
        return Stream(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor([float(number)]) for number in self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def loader_of(kind: str, size: int) -> DataLoader[Any]:
    if kind == "stream":
        return DataLoader(Stream(range(SAMPLES)), size)
    samples = torch.arange(float(SAMPLES)).unsqueeze(1)
    return DataLoader(samples, size, shuffle=True, generator=torch.Generator().manual_seed(3))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=["map", "stream"])
    parser.add_argument("--from", dest="begin")
    parser.add_argument("--stop", type=int)
    parser.add_argument("--continue", dest="by_continue", action="store_true")
    given, _ = parser.parse_known_args()
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    plain = loader_of(given.kind, SAMPLES // 3 // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, plain)
    step = epoch = skipped = 0
    if given.begin:
        accelerator.load_state(str(given.folder / given.begin))
        step = int(given.begin.removeprefix("step_"))
        epoch, skipped = step // len(loader), step % len(loader)
    for at in range(epoch, EPOCHS):
        begins, active = at == epoch, loader
        if given.begin and begins and not given.by_continue:
            active = accelerator.skip_first_batches(loader, skipped)
        for number, batch in enumerate(active):
            if given.by_continue and begins and number < skipped:
                continue
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            seen = sorted(accelerator.gather(batch).flatten().tolist())
            accelerator.print("trained", step, at, *map(int, seen))
            if step % 3 == 0 or step == given.stop:
                accelerator.save_state(str(given.folder / f"step_{step}"))
            if step == given.stop:
                return


if __name__ == "__main__":
    main()
