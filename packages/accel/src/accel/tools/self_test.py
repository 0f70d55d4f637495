"""The program that `accel test` launches: it exchanges, evaluates and trains, and compares with what must come out."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator

SAMPLES = 21


def problems(accelerator: Accelerator) -> list[str]:
    """Return what went otherwise than it must, in words.

    Collective:
        Every process must call.
    """
    failures = []
    ranks = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device))
    if ranks.tolist() != list(range(accelerator.num_processes)):
        failures.append(f"gather returned ranks {ranks.tolist()}, expected 0 to {accelerator.num_processes - 1}")
    data = TensorDataset(torch.arange(SAMPLES, dtype=torch.float32, device="cpu").unsqueeze(1))
    loader, weights = accelerator.prepare(DataLoader(data, batch_size=4), torch.nn.Linear(1, 1))
    seen = [accelerator.gather_for_metrics(batch) for (batch,) in loader]
    if torch.cat(seen).flatten().tolist() != list(range(SAMPLES)):
        failures.append(f"a loader of {SAMPLES} samples came back as {torch.cat(seen).flatten().tolist()}")
    optimizer = accelerator.prepare(torch.optim.SGD(weights.parameters(), lr=1e-3))
    for (batch,) in loader:
        accelerator.backward(weights(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    trained = torch.cat([parameter.detach().flatten() for parameter in weights.parameters()])
    if accelerator.reduce(trained, "max").tolist() != accelerator.reduce(trained, "min").tolist():
        failures.append("after training the weights differ between processes")
    return failures


def main() -> int:
    """Return the exit code: 0 if everything went as it must."""
    accelerator = Accelerator()
    failures = problems(accelerator)
    for line in failures:
        print(f"rank {accelerator.process_index}: {line}", file=sys.stderr)
    accelerator.print(
        f"{accelerator.num_processes} process(es), {accelerator.distributed_type}, device {accelerator.device},"
        f" mixed precision {accelerator.mixed_precision}"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
