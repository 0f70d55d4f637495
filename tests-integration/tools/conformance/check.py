"""The training that checks of a device compare with plain PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accel import Accelerator
from accel.utils import send_to_device
from torch import Tensor, nn
from torch.optim import AdamW

BATCH, WIDTH, CLASSES, STEPS = 12, 6, 3, 4
#: of float32, relative and absolute; devices may round products to fewer bits
TOLERANCE = 5e-3
HALF_TOLERANCE = 5e-2


class NotOffered(Exception):
    """An error of a check of a feature that the device does not offer. The message says why."""


def make_model() -> nn.Sequential:
    """Return a small model, with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def batches(count: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and classes on the CPU, the same at each call."""
    generator = torch.Generator(device="cpu").manual_seed(1)
    for _ in range(count):
        inputs = torch.randn(BATCH, WIDTH, generator=generator, device="cpu")
        yield inputs, torch.randint(CLASSES, (BATCH,), generator=generator, device="cpu")


def train_plainly(max_norm: float | None = None) -> dict[str, Any]:
    """Train in plain PyTorch on the CPU.

    Args:
        max_norm: Clip gradients to this norm. Default: do not clip.

    Returns:
        The "losses" of steps, the "norms" of gradients if they were clipped, and the "weights" after the last step.
    """
    model, losses, norms = make_model(), [], []
    optimizer = AdamW(model.parameters(), lr=0.01)
    for inputs, classes in batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()  # type: ignore[no-untyped-call] # of torch
        if max_norm is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "norms": norms, "weights": to_cpu(model.state_dict())}


def train(accelerator: Accelerator, *, every: int = 1, max_norm: float | None = None) -> dict[str, Any]:
    """Train on the device of an Accelerator, with each batch divided over processes and micro-batches.

    Args:
        accelerator: The Accelerator.
        every: Number of micro-batches of each process in a step.
        max_norm: Clip gradients to this norm. Default: do not clip.

    Returns:
        What `train_plainly` returns, with the mean losses of all processes.

    Collective:
        Every process must call.
    """
    model, optimizer = make_model(), None
    model, optimizer = accelerator.prepare(model, AdamW(model.parameters(), lr=0.01))
    losses, norms = [], []
    for inputs, classes in batches():
        parts = accelerator.num_processes * every
        total = 0.0
        for number in range(every):
            part = accelerator.process_index * every + number
            own = inputs.chunk(parts)[part].to(accelerator.device), classes.chunk(parts)[part].to(accelerator.device)
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(own[0]).float(), own[1])
                accelerator.backward(loss)
                if max_norm is not None and accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), max_norm)))
                optimizer.step()
                optimizer.zero_grad()
            total += accelerator.reduce(loss.detach(), "mean").item() / every
        losses.append(total)
    return {"losses": losses, "norms": norms, "weights": to_cpu(accelerator.get_state_dict(model))}


def to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def compare(what: str, found: object, wanted: object, tolerance: float = 0.0) -> None:
    """Raise if numbers are not equal within a tolerance.

    Args:
        what: What is compared, for the error.
        found: Tensors or numbers of the device, also in lists, tuples and dictionaries.
        wanted: What they should be.
        tolerance: Largest relative and absolute difference.

    Raises:
        AssertionError: They differ; the message says by how much.
    """
    found, wanted = send_to_device((found, wanted), "cpu")
    torch.testing.assert_close(
        found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def require(what: str, holds: bool) -> None:
    """Raise AssertionError with a message unless a condition holds."""
    if not holds:
        raise AssertionError(what)
