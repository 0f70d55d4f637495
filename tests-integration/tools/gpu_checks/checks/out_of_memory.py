"""After a real out-of-memory error a smaller batch runs, and the memory is back."""

from __future__ import annotations

import torch
from accel import Accelerator, find_executable_batch_size
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from gpu_checks.check import Findings, Setup
from gpu_checks.training import batches, perceptron

START, FITS = 128, 90
#: more than any address space has
TOO_MUCH = 1 << 55


def run(setup: Setup, findings: Findings) -> None:
    """Lets a batch size be searched, and a training step run out of memory and go on."""
    accelerator = Accelerator(cpu=setup.rehearsal)
    device = accelerator.device
    total = 0 if setup.rehearsal else torch.cuda.get_device_properties(device).total_memory
    tries: list[int] = []

    @find_executable_batch_size(starting_batch_size=START)
    def fitting(batch_size: int) -> int:
        tries.append(batch_size)
        held = _allocated(device, batch_size, total)
        return int(held.numel() and batch_size)

    with findings.part("batch size"):
        found = fitting()
        assert len(tries) > 1, f"the first size, {START}, was no shortage"
        assert 0 < found < START
        findings.facts["batch size"] = f"tried {', '.join(map(str, tries))}"
    with findings.part("memory after it"):
        setup.need_cuda()
        left = torch.cuda.memory_allocated()
        assert left < 1 << 20, f"{left} bytes are still allocated"
    with findings.part("a step after a shortage"):
        bare = perceptron()
        model, optimizer = accelerator.prepare(bare, SGD(bare.parameters(), lr=0.1))
        ((inputs, targets),) = batches(device, 1, 8)
        for short in (True, False, True, False):
            loss = cross_entropy(model(inputs), targets)
            if short:
                shortage = _shortage(device, total)
                assert shortage is not None, "there was no shortage"
                findings.facts["a step after a shortage"] = f"runs, after {shortage[:80]}"
            else:
                accelerator.backward(loss)
                optimizer.step()
            optimizer.zero_grad()
        assert all(parameter.isfinite().all() for parameter in bare.parameters())


def _shortage(device: torch.device, total: int) -> str | None:
    """The words of the error if memory for the largest batch is asked for."""
    try:
        _allocated(device, START, total)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _allocated(device: torch.device, batch_size: int, total: int) -> Tensor:
    """Memory for a batch, of which a hundred fill a GPU; the CPU has some for 90 and for more none."""
    count = batch_size * (total // 100) if total else (1 if batch_size <= FITS else TOO_MUCH)
    return torch.empty(max(count, 1), dtype=torch.uint8, device=device)
