"""The strategy under docs/examples/own_strategy is chosen by its name, trains, saves and loads, with its options."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from accel_state import CannotRun
from accel_testing import MakePool
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

NAME = "averaging"
EPOCHS, BATCH = 2, 8


@pytest.fixture
def places(installed_example: Callable[[str], list[str]]) -> list[str]:
    return installed_example("own_strategy")


@contextmanager
def on_the_path(places: list[str]) -> Iterator[Any]:
    sys.path[:0] = places
    try:
        yield __import__("own_strategy")
    finally:
        del sys.path[: len(places)]


def data() -> TensorDataset:
    rows = torch.arange(64.0).reshape(32, 2) / 64
    return TensorDataset(rows, rows.sum(1, keepdim=True))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def trained(places: list[str], dtype: str | None, folder: str, epochs: int, resumed: bool = False) -> list[Tensor]:
    """The weights after some epochs, each of whose steps takes two micro-batches of every process."""
    with on_the_path(places) as module:
        options = None if dtype is None else module.AveragingOptions(dtype)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, strategy=NAME, strategy_options=options)
        assert accelerator.components.strategy.name == NAME
        raw = model()
        if accelerator.process_index > 0:
            nn.init.zeros_(next(raw.parameters()))  # rank 0 has the weights of all
        loader = DataLoader(data(), BATCH // 2 // accelerator.num_processes)
        ready, optimizer, loader = accelerator.prepare(raw, torch.optim.Adam(raw.parameters(), lr=0.1), loader)
        if resumed:
            accelerator.load_state(folder)
        for _ in range(epochs):
            for inputs, targets in loader:
                with accelerator.accumulate(ready):
                    accelerator.backward(nn.functional.mse_loss(ready(inputs), targets))
                    accelerator.clip_grad_norm_(ready.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
        if not resumed:
            accelerator.save_state(folder)
        return [parameter.detach().clone() for parameter in ready.parameters()]


def by_hand(epochs: int) -> list[Tensor]:
    raw = model()
    optimizer = torch.optim.Adam(raw.parameters(), lr=0.1)
    for _ in range(epochs):
        for inputs, targets in DataLoader(data(), BATCH):
            optimizer.zero_grad()
            nn.functional.mse_loss(raw(inputs), targets).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(raw.parameters(), 0.5)
            optimizer.step()
    return [parameter.detach() for parameter in raw.parameters()]


def test_it_trains_like_torch_and_goes_on_from_its_checkpoint(
    world: MakePool, places: list[str], tmp_path: Path
) -> None:
    """Saved by two processes, and loaded by one."""
    first = world(2).run(trained, places, "float64", str(tmp_path / "saved"), EPOCHS)
    torch.testing.assert_close(first, [by_hand(EPOCHS)] * 2)
    (last,) = world(1).run(trained, places, None, str(tmp_path / "saved"), EPOCHS, True)
    torch.testing.assert_close(last, by_hand(2 * EPOCHS))


def test_its_options_decide_in_which_dtype_gradients_travel(world: MakePool, places: list[str], tmp_path: Path) -> None:
    zero, one = world(2).run(trained, places, "bfloat16", str(tmp_path / "saved"), 1)
    torch.testing.assert_close(zero, one, rtol=0, atol=0)
    assert 0 < max((ours - exact).abs().max().item() for ours, exact in zip(zero, by_hand(1), strict=True)) < 0.05


def test_other_options_are_refused_in_words(places: list[str]) -> None:
    with on_the_path(places) as module:
        with pytest.raises(ValueError, match=r"DistributedData.*: strategy='averaging' takes AveragingOptions"):
            Accelerator(cpu=True, strategy=NAME, strategy_options=DistributedDataParallelKwargs())
        with pytest.raises(ValueError, match="AveragingOptions: name the strategy that takes them"):
            Accelerator(cpu=True, strategy_options=module.AveragingOptions())
        with pytest.raises(ValueError, match="strategy='single' takes none"):
            Accelerator(cpu=True, strategy="single", strategy_options=module.AveragingOptions())
        with pytest.raises(CannotRun, match="expected a dtype of torch"):
            Accelerator(cpu=True, strategy=NAME, strategy_options=module.AveragingOptions("half a number"))


@pytest.mark.parametrize(
    ("name", "options"), [("ddp", DistributedDataParallelKwargs()), ("fsdp2", FullyShardedDataParallelPlugin())]
)
def test_strategies_of_accel_take_theirs_alike(name: str, options: object) -> None:
    accelerator = Accelerator(cpu=True, strategy=name, strategy_options=options)
    assert accelerator.settings.options[name] is options
