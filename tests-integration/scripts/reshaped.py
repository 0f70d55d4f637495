"""Training whose batch of the whole job is the same at any number of processes, by functions that tests run."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accel import Accelerator
from accel.checkpoint.consensus import RankConsensus
from accel.utils import DataLoaderConfiguration
from restart import digest
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

SAMPLES = 96
#: samples of a step of the whole job
TOGETHER = 12


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Inputs and targets, each with its number."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, 8, generator=generator)
        self.targets = torch.randint(0, 3, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.inputs[index], self.targets[index], index


class Stream(IterableDataset[Tensor]):
    """Numbers, one after the other."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor(number) for number in range(SAMPLES))


@dataclass(frozen=True)
class Step:
    """The samples of a step of the whole job, and its loss."""

    samples: list[int]
    loss: float


def begun(
    accumulation: int = 1, together: int = TOGETHER, strategy: str = "auto"
) -> tuple[Accelerator, Any, Any, Any, Any]:
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulation, scheduler_once_per_step=True, strategy=strategy
    )
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    size = together // accelerator.num_processes
    loader = DataLoader(Numbered(), size, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, schedule, loader)


def train(loaded: str | None, saved: str | None, steps: int, strategy: str = "auto") -> list[Step]:
    """That many steps, from one checkpoint to another."""
    accelerator, model, optimizer, schedule, loader = begun(strategy=strategy)
    if loaded is not None:
        accelerator.load_state(loaded)
    found: list[Step] = []
    while len(found) < steps:
        for inputs, targets, numbers in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            mean: Any = accelerator.reduce(loss.detach(), reduction="mean")
            found.append(Step(sorted(accelerator.gather(numbers).tolist()), mean.item()))
            if len(found) == steps:
                if saved is not None:
                    accelerator.save_state(saved)
                break
    return found


def loaded_bits(folder: str) -> str:
    """A hash of weights and optimizer state that were loaded."""
    accelerator, model, optimizer, schedule, _ = begun()
    accelerator.load_state(folder)
    return digest(accelerator.unwrap_model(model).state_dict(), optimizer.state_dict(), schedule.state_dict())


def trained_bits(folder: str) -> str:
    """A hash of the same that were saved."""
    accelerator, model, optimizer, schedule, loader = begun()
    for inputs, targets, _ in loader:
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.save_state(folder, asynchronous=True)
    accelerator.end_training()
    return digest(accelerator.unwrap_model(model).state_dict(), optimizer.state_dict(), schedule.state_dict())


def windows(folder: str, at: int | None, resumed: bool) -> tuple[str, list[str]]:
    """Two epochs of windows of four micro-batches, saved after micro-batch `at`; what was warned of."""
    accelerator, model, optimizer, schedule, loader = begun(accumulation=4, together=4)
    said: list[str] = []
    RankConsensus.warn_once = lambda _, text: said.append(text)  # type: ignore[method-assign, assignment] # a stand-in
    if resumed:
        accelerator.load_state(folder)
    count = 0
    for _ in range(loader.iteration, 2):
        for inputs, targets, _ in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                count += 1
                if count == at:
                    accelerator.save_state(folder)
                    if not resumed:
                        return "", said
    return digest(accelerator.unwrap_model(model).state_dict(), optimizer.state_dict(), schedule.state_dict()), said


def served_by_several(folder: str, resumed: bool, workers: int, dispatch: bool | None) -> list[list[int]]:
    """What each of three loaders serves from the checkpoint on: one is used up, one in its epoch, one has not begun."""
    settings = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    torch.manual_seed(3)
    numbers: Any = list(range(SAMPLES))
    shuffled: Any = [DataLoader(numbers, 4, shuffle=True, num_workers=workers) for _ in range(2)]
    loaders: Any = accelerator.prepare(*shuffled, DataLoader(Stream(), 4, num_workers=min(workers, 1)))
    begun_at = 3
    iterators: list[Any] = [None, None, None]
    if resumed:
        torch.manual_seed(99)
        random.seed(99)
        accelerator.load_state(folder)
    else:
        for _ in loaders[0]:
            pass
        for place in (1, 2):
            iterators[place] = iter(loaders[place])
            for _ in range(begun_at):
                next(iterators[place])
        accelerator.save_state(folder)
    found = []
    for place, loader in enumerate(loaders):
        served: list[int] = []
        rest = iterators[place] if iterators[place] is not None else iter(loader)
        for batch in rest:
            served += accelerator.gather(batch).tolist()
        for batch in loader:
            served += accelerator.gather(batch).tolist()
        found.append(served)
    return found
