"""No step of accel makes the host wait for the GPU more often than the same step by hand."""

from __future__ import annotations

import torch
from accel import Accelerator, DataLoaderConfiguration
from accel_state import release
from torch.utils.data import DataLoader

from gpu_checks.check import Findings, Setup
from gpu_checks.loops import Step, accelerator_for, by_accel, by_hand
from gpu_checks.training import batches, perceptron, samples
from gpu_checks.waits import Loop, waits_in

STEPS, BATCH, EVERY = 8, 16, 2


def run(setup: Setup, findings: Findings) -> None:
    """Counts the waits of two loops for each kind of step: by hand and with accel."""
    steps = {
        "plain": Step(),
        "accumulated": Step(every=EVERY),
        "clipped": Step(clip=True),
        "bf16": Step(precision="bf16"),
        "weighted": Step(weighted=True, every=EVERY),
        "fp16": Step(precision="fp16", clip=True),
        "fp16, fused and scheduled": Step(precision="fp16", fused=True),
        "compiled": Step(compiled=True),
    }
    data = batches(torch.device(setup.kind), STEPS, BATCH)
    for kind, step in steps.items():
        with findings.part(kind):
            hand = by_hand(setup, step, perceptron().to(setup.kind), data)
            ours = by_accel(accelerator_for(setup, step), step, perceptron().to(setup.kind), data)
            _compare(setup, findings, kind, hand, ours)
    with findings.part("loader"):
        _compare(setup, findings, "loader", loader_by_hand(setup), loader_of_accel(setup))


def _compare(setup: Setup, findings: Findings, kind: str, hand: Loop, ours: Loop) -> None:
    for loop in (hand, ours):
        loop()  # makes states, compiles, and loads kernels
    if setup.rehearsal:
        findings.facts[kind] = "ran; waits are counted with CUDA only"
        return
    waits_of_hand, waits = waits_in(hand), waits_in(ours)
    findings.facts[kind] = f"{len(waits)} waits in {STEPS} micro-batches, by hand {len(waits_of_hand)}"
    assert len(waits) <= len(waits_of_hand), "\n".join([f"by hand {len(waits_of_hand)}, with accel:", *waits])


def loader_by_hand(setup: Setup) -> Loop:
    """A pass over pinned batches, which are copied without waiting."""
    device = torch.device(setup.kind)
    loader = DataLoader(samples(STEPS * BATCH), BATCH, pin_memory=not setup.rehearsal)

    def loop() -> None:
        for batch in loader:
            for tensor in batch:
                tensor.to(device, non_blocking=True)

    return loop


def loader_of_accel(setup: Setup) -> Loop:
    """The same pass over a prepared loader."""
    release()
    accelerator = Accelerator(cpu=setup.rehearsal, dataloader_config=DataLoaderConfiguration(non_blocking=True))
    loader = accelerator.prepare(DataLoader(samples(STEPS * BATCH), BATCH, pin_memory=not setup.rehearsal))

    def loop() -> None:
        for _ in loader:
            pass

    return loop
