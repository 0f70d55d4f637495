"""A3, T17: a checkpoint goes on at any number of processes, at any place of a window, with any kinds of loaders."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reshaped
import torch
from accel import Accelerator
from accel_state import release
from accel_testing import MakePool
from reshaped import SAMPLES, Step
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

EPOCH = SAMPLES // reshaped.TOGETHER


def check_same(found: list[Step], whole: list[Step]) -> None:
    assert [one.samples for one in found] == [one.samples for one in whole]
    assert [one.loss for one in found] == pytest.approx([one.loss for one in whole], rel=1e-5)


@pytest.mark.parametrize("strategy", ["auto", "fsdp2"])
def test_two_processes_then_one_then_four_train_as_one_does(strategy: str, world: MakePool, tmp_path: Path) -> None:
    """A3, A4: the batch of the job is the same, in the middle of epochs; each sample once an epoch."""
    (whole,) = world(1, join=False).run(reshaped.train, None, None, 24)
    found: list[Step] = []
    before = None
    for size, steps in ((2, 5), (1, 6), (4, 7), (2, 6)):
        folder = str(tmp_path / str(len(found)))
        ranks = world(size).run(reshaped.train, before, folder, steps, strategy)
        assert all(one == ranks[0] for one in ranks)
        found += ranks[0]
        before = folder
    check_same(found, whole)
    for epoch in range(3):
        samples = [one for step in found[epoch * EPOCH :][:EPOCH] for one in step.samples]
        assert sorted(samples) == list(range(SAMPLES))


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_loaded_has_the_bits_of_what_was_saved(size: int, world: MakePool, tmp_path: Path) -> None:
    """T17, fault test 13: parameters and optimizer, saved by one or two processes, loaded by one, two and three."""
    folder = str(tmp_path / "saved")
    saved = set(world(size).run(reshaped.trained_bits, folder))
    assert len(saved) == 1
    for other in (1, 2, 3):
        assert set(world(other).run(reshaped.loaded_bits, folder)) == saved


@pytest.mark.parametrize(("size", "at"), [(1, 5), (1, 6), (1, 7), (1, 8), (2, 5), (2, 7)])
def test_a_save_at_any_place_of_a_window_goes_on_as_if_it_had_not_stopped(
    size: int, at: int, world: MakePool, tmp_path: Path
) -> None:
    """Fault test 23: inside of a window it is said that it is the checkpoint of the last step."""
    whole = world(size).run(reshaped.windows, "", None, False)
    folder = str(tmp_path / "saved")
    for _, said in world(size).run(reshaped.windows, folder, at, False):
        assert any("inside of a window" in one for one in said) == (at % 4 != 0)
    resumed = world(size).run(reshaped.windows, folder, None, True)
    assert [bits for bits, _ in resumed] == [bits for bits, _ in whole]


@pytest.mark.parametrize(("size", "dispatch", "workers"), [(1, None, 2), (2, None, 2), (2, True, 0)])
def test_several_loaders_go_on_each_where_it_was(
    size: int, dispatch: bool | None, workers: int, world: MakePool, tmp_path: Path
) -> None:
    """One has ended its epoch, one is in it, and a stream is as well; then each serves another epoch."""
    folder = str(tmp_path / "saved")
    whole = world(size).run(reshaped.served_by_several, folder, False, workers, dispatch)
    resumed = world(size).run(reshaped.served_by_several, folder, True, workers, dispatch)
    assert resumed == whole
    ended, within, stream = whole[0]
    assert len(ended) == 2 * SAMPLES
    begun = 3 * 4 * size
    assert len(within) == len(stream) == 2 * SAMPLES - begun
    assert stream[: SAMPLES - begun] == list(range(begun, SAMPLES))


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    yield
    release()


def stepped(accelerator: Accelerator, made: Any, optimizer: Any, steps: int) -> list[Tensor]:
    for _ in range(steps):
        loss: Any = sum((one**2).sum() * place for place, one in enumerate(made.parameters(), start=1))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach().clone() for one in made.parameters()]


class Exact(Optimizer):
    """SGD with momentum that is more exact than what it trains."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # as torch's own subclasses have it
        for one in self.param_groups[0]["params"]:
            moment = self.state[one].setdefault("moment", torch.zeros(one.shape))
            moment.mul_(0.9).add_(one.grad.float(), alpha=0.001)
            one.data.sub_(moment.to(one.dtype))


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    # mypy infers no lambda with a default
    name: lambda parameters, name=name: getattr(torch.optim, name)(parameters, lr=0.01)  # type: ignore[misc]
    for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop")
}
OPTIMIZERS["Rprop"] = lambda parameters: torch.optim.Rprop(parameters, lr=0.01)
OPTIMIZERS["SGD with momentum"] = lambda parameters: SGD(parameters, lr=0.01, momentum=0.9)
OPTIMIZERS["Adam, amsgrad"] = lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), amsgrad=True)
OPTIMIZERS["AdamW in bfloat16"] = lambda parameters: AdamW(parameters)
OPTIMIZERS["bfloat16 with float32 moments"] = lambda parameters: Exact(parameters, {})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_as_if_it_had_not_stopped(name: str, tmp_path: Path) -> None:
    """Fault test 14."""

    def begun() -> tuple[Accelerator, Any]:
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(1)
        made = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to(
            torch.bfloat16 if "bfloat16" in name else torch.float32
        )
        return accelerator, accelerator.prepare(made, OPTIMIZERS[name](made.parameters()))

    accelerator, ready = begun()
    stepped(accelerator, ready[0], ready[1], 3)
    folder = accelerator.save_state(tmp_path / "saved", asynchronous=True)
    expected = stepped(accelerator, ready[0], ready[1], 5)
    accelerator.wait_for_checkpoint()
    release()
    accelerator, ready = begun()
    accelerator.load_state(folder)
    assert all(map(torch.equal, stepped(accelerator, ready[0], ready[1], 5), expected))
