"""Training on the device of the tests equals plain PyTorch on the CPU; run with --device=cuda and --device=xla too."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accel import Accelerator, DataLoaderConfiguration, load_checkpoint_in_model
from accel.utils import set_seed
from accel_checkpoint import CheckpointError
from accel_state import release
from accel_testing import assert_same_numbers
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

WORDS = 11
Accelerate = Callable[..., Accelerator]
MakeOptimizer = Callable[[Iterator[nn.Parameter]], Optimizer]


class Tied(nn.Module):
    """Guesses words; the head's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, 8)
        self.between = nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.between(self.embed(words))))
        return scores


def data(samples: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(WORDS, (2, samples, 5), generator=generator)
    return TensorDataset(words[0], words[1])


def loss_of(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return nn.functional.cross_entropy(scores.reshape(-1, WORDS), targets.reshape(-1), reduction=reduction)


def plain(make: MakeOptimizer, batch: int, epochs: int = 2, clip: float | None = None) -> tuple[nn.Module, list[float]]:
    """Hand-written PyTorch on the CPU: the trained model, and the losses."""
    model, losses = Tied(), []
    optimizer = make(model.parameters())
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    for _ in range(epochs):
        for words, targets in DataLoader(data(), batch_size=batch):
            optimizer.zero_grad()
            loss = loss_of(model(words), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    return model, losses


def sgd(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.5, momentum=0.9)


def adamw(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=0.01)


@pytest.fixture
def accelerate(device: torch.device) -> Iterator[Accelerate]:
    """Makes Accelerators on the device of the tests."""
    yield lambda **settings: Accelerator(cpu=device.type == "cpu", **settings)
    release()


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("make", [sgd, adamw])
def test_training_with_tied_weights_equals_plain_pytorch(
    accelerate: Accelerate, make: MakeOptimizer, clip: float | None
) -> None:
    """S1, S115, S118: weights and losses of 12 steps, with a schedule, clipped and not."""
    expected, expected_losses = plain(make, 4, clip=clip)
    accelerator, model = accelerate(), Tied()
    optimizer = make(model.parameters())
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    loader = DataLoader(data(), batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    for _ in range(2):
        for words, targets in loader:
            optimizer.zero_grad()
            loss = loss_of(model(words), targets)
            accelerator.backward(loss)
            if clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
    assert_same_numbers(model.state_dict(), expected.state_dict(), atol=1e-6, rtol=1e-5)
    assert_same_numbers([one.item() for one in losses], expected_losses, atol=1e-6, rtol=1e-5)


def test_ties_are_kept_and_optimizers_hold_what_was_moved(accelerate: Accelerate, device: torch.device) -> None:
    """S118, S119: also the state that an optimizer had before."""
    model = Tied()
    optimizer = AdamW(model.parameters())
    loss_of(model(data()[:4][0]), data()[:4][1]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    model, prepared = accelerate().prepare(model, optimizer)
    assert model.head.weight is model.embed.weight
    held = prepared.param_groups[0]["params"]
    assert [id(one) for one in held] == [id(one) for one in model.parameters()]
    assert {one.device.type for one in held} == {device.type}
    assert {id(one) for one in prepared.state} == {id(one) for one in held}
    assert {entry["exp_avg"].device.type for entry in prepared.state.values()} == {device.type}


def test_accumulated_steps_equal_those_of_the_large_batch(accelerate: Accelerate) -> None:
    """S96, S98, S99."""
    expected, _ = plain(sgd, 8)
    accelerator, model = accelerate(gradient_accumulation_steps=2), Tied()
    optimizer = sgd(model.parameters())
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    loader = DataLoader(data(), batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(2):
        for words, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(words), targets))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    assert_same_numbers(model.state_dict(), expected.state_dict(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("every", [1, 2])
def test_weighted_losses_equal_the_large_batch(accelerate: Accelerate, every: int) -> None:
    """T6: sums of losses, each with its number of words, in windows of unequal parts."""
    windows = {1: [[0, 12], [12, 24]], 2: [[0, 2, 12], [12, 19, 24]]}[every]
    reference = Tied()
    steps, losses = SGD(reference.parameters(), lr=0.5), []
    for ends in windows:
        words, targets = data()[ends[0] : ends[-1]]
        steps.zero_grad()
        loss = loss_of(reference(words), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()
        losses.append(loss.item())
    accelerator, model = accelerate(gradient_accumulation_steps=every), Tied()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=0.5))
    found = []
    for ends in windows:
        for start, end in pairwise(ends):
            with accelerator.accumulate(model):
                words, targets = (one.to(accelerator.device) for one in data()[start:end])
                accelerator.backward(loss_of(model(words), targets, "sum"), weight=targets.numel())
                if accelerator.sync_gradients:
                    found.append(accelerator.last_loss)
                optimizer.step()
                optimizer.zero_grad()
    assert_same_numbers(model.state_dict(), reference.state_dict(), atol=1e-6, rtol=1e-5)
    assert found == pytest.approx(losses, rel=1e-5)


def test_bf16_computes_in_bfloat16_and_keeps_weights_in_float32(accelerate: Accelerate) -> None:
    """S68: near what float32 gives."""
    expected, expected_losses = plain(sgd, 4)
    accelerator, model = accelerate(mixed_precision="bf16"), Tied()
    inside = []
    model.between.register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    optimizer = sgd(model.parameters())
    scheduler = LambdaLR(optimizer, lambda step: 0.9**step)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=4))
    scheduler, losses = accelerator.prepare(scheduler), []
    for _ in range(2):
        for words, targets in loader:
            optimizer.zero_grad()
            scores = model(words)
            assert scores.dtype is torch.float32
            loss = loss_of(scores, targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    assert set(inside) == {torch.bfloat16}
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    assert losses == pytest.approx(expected_losses, rel=0.02)
    assert losses != pytest.approx(expected_losses, rel=1e-6)
    assert_same_numbers(model.state_dict(), expected.state_dict(), atol=0.05)


@pytest.mark.parametrize("safe", [True, False])
def test_saved_weights_come_back(accelerate: Accelerate, device: torch.device, tmp_path: Path, safe: bool) -> None:
    """S88, S91: each tensor under its own name, although some have one shape; ties stay in files and in the model."""
    accelerator, model = accelerate(), Tied()
    with torch.no_grad():
        model.embed.weight.copy_(torch.arange(88.0).view(WORDS, 8))
    before = {name: one.detach().clone() for name, one in model.state_dict().items()}
    twin = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    expected = {name: one.detach().clone() for name, one in twin.state_dict().items()}
    accelerator.save_model(accelerator.prepare(model), tmp_path / "tied", safe_serialization=safe)
    accelerator.save_model(accelerator.prepare(twin), tmp_path / "twin", safe_serialization=safe)
    for target in (Tied(), Tied().to(device)):
        nn.init.zeros_(target.embed.weight)
        load_checkpoint_in_model(target, tmp_path / "tied", {"": device}, strict=True)
        assert_same_numbers(target.state_dict(), before, atol=0)
        assert {one.device.type for one in target.parameters()} == {device.type}
    assert load_tied(tmp_path / "tied", device)
    fresh = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]).to(device)
    load_checkpoint_in_model(fresh, tmp_path / "twin", strict=True)
    assert_same_numbers(fresh.state_dict(), expected, atol=0)


def load_tied(folder: Path, device: torch.device) -> bool:
    model = Tied()
    load_checkpoint_in_model(model, folder, {"": device}, strict=True)
    return model.head.weight is model.embed.weight


def test_views_are_saved_with_their_own_numbers(accelerate: Accelerate, device: torch.device, tmp_path: Path) -> None:
    """S88: of one memory, and of one shape."""
    accelerator, views = accelerate(), nn.Module()
    whole = torch.arange(9.0, device=device).view(3, 3)
    for name, one in (("whole", whole), ("turned", whole.t()), ("again", whole.detach()), ("part", whole[1:])):
        views.register_buffer(name, one)
    accelerator.save_model(views, tmp_path)
    expected = {name: one.cpu() for name, one in views.state_dict().items()}
    for one in views.buffers():
        one.data = torch.zeros_like(one)
    load_checkpoint_in_model(views, tmp_path, strict=True)
    assert_same_numbers(views.state_dict(), expected, atol=0)


def test_what_the_files_lack_is_told(accelerate: Accelerate, device: torch.device, tmp_path: Path) -> None:
    """S91: a tensor that is not there, beside one of its shape that is."""
    model = accelerate().prepare(nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]))
    torch.save({name: one.cpu() for name, one in model[0].state_dict(prefix="0.").items()}, tmp_path / "half.bin")
    with pytest.raises(CheckpointError, match=r"missing from the files: 1.weight, 1.bias"):
        load_checkpoint_in_model(model, tmp_path / "half.bin", strict=True)


def test_evaluation_returns_every_sample_once(accelerate: Accelerate, device: torch.device) -> None:
    """S77, S79: on the device, in order."""
    accelerator = accelerate()
    loader = accelerator.prepare(DataLoader(data(20), batch_size=4))
    with torch.no_grad():
        found = [accelerator.gather_for_metrics(targets + 1) for _, targets in loader]
    assert {one.device.type for one in found} == {device.type}
    assert_same_numbers(torch.cat(found), data(20)[:][1] + 1, atol=0)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_loader_serves_the_device(accelerate: Accelerate, device: torch.device, non_blocking: bool) -> None:
    """S17, S53."""
    accelerator = accelerate(dataloader_config=DataLoaderConfiguration(non_blocking=non_blocking))
    loader = accelerator.prepare(DataLoader(data(8), batch_size=4))
    batches = [one for batch in loader for one in batch]
    assert {one.device.type for one in batches} == {device.type}
    assert_same_numbers(batches, [one for batch in DataLoader(data(8), batch_size=4) for one in batch], atol=0)


def test_a_seed_makes_the_device_draw_the_same(accelerate: Accelerate) -> None:
    """Dropout too; and the state of the generator can be taken and put back."""
    accelerator = accelerate()
    ones: Any = torch.ones(64, device=accelerator.device)
    hardware, draws = accelerator.run.device, []
    for _ in range(2):
        set_seed(11)
        draws.append(nn.functional.dropout(ones, 0.5).cpu())
    set_seed(12)
    draws.append(nn.functional.dropout(ones, 0.5).cpu())
    state = hardware.rng_state()
    draws.append(nn.functional.dropout(ones, 0.5).cpu())
    hardware.set_rng_state(state)
    draws.append(nn.functional.dropout(ones, 0.5).cpu())
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[1], draws[2])
    assert torch.equal(draws[3], draws[4])
