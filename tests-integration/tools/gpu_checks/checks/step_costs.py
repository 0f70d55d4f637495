"""What a step costs beyond the same step by hand: in each precision, accumulated, clipped and compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import AdamW

from gpu_checks.check import Findings, Setup, Skipped
from gpu_checks.contestants import CONTESTANTS
from gpu_checks.loops import Batches, Step, accelerator_for, by_accel, by_hand
from gpu_checks.measure import clean, host_ms, interleaved, step_gib
from gpu_checks.training import Language, batches, perceptron, texts

WARM_UP = 5
#: on the GPU, and rehearsed
WORDS = (32_000, 50)
Make = Callable[[], nn.Module]

#: none makes the host wait: fp16 does with an optimizer that is not fused, and with a schedule
KINDS = {
    "plain": Step(),
    "bf16": Step(precision="bf16"),
    "fp16": Step(precision="fp16", fused=True, scheduled=False),
    "accumulated, clipped": Step(every=4, clip=True, precision="bf16"),
    "compiled": Step(compiled=True),
}


def run(setup: Setup, findings: Findings) -> None:
    """Compares steps of a small model, which the host bounds, and of one of 330 million parameters."""
    device = torch.device(setup.kind)
    small = batches(device, 4, 32)
    for name, step in KINDS.items():
        with findings.part(f"small, {name}"):
            _compare(setup, findings, f"small, {name}", step, perceptron, small[: step.every])
        clean(setup)
    large = texts(device, 4, setup.size(8, 2), setup.size(512, 8), setup.size(*WORDS))
    with findings.part("libraries, bf16"):
        _libraries(setup, findings, large[0])
    for name in ("fp16", "accumulated, clipped"):
        clean(setup)
        with findings.part(f"large, {name}"):
            step = KINDS[name]
            _compare(setup, findings, f"large, {name}", step, lambda: _language(setup), large[: step.every])


def _language(setup: Setup) -> nn.Module:
    torch.manual_seed(0)
    return Language(setup.size(*WORDS), setup.size(1024, 32), setup.size(24, 2))


def _compare(setup: Setup, findings: Findings, name: str, step: Step, make: Make, data: Batches) -> None:
    loops = {
        "by hand": by_hand(setup, step, make().to(setup.kind), data),
        "accel": by_accel(accelerator_for(setup, step), step, make().to(setup.kind), data),
    }
    for loop in loops.values():
        for _ in range(setup.size(WARM_UP, 1)):
            loop()
    cost = interleaved(setup, loops)
    findings.facts |= {f"{name}: ms by hand": cost["by hand"].ms, f"{name}: of it": str(cost["accel"])}
    if name.startswith("small"):
        hand, ours = (host_ms(setup, loop) for loop in loops.values())
        findings.facts[f"{name}: ms of the host"] = f"{ours:.3f}, by hand {hand:.3f}"
    else:
        hand, ours = (step_gib(setup, loop) for loop in loops.values())
        findings.facts[f"{name}: GiB of a step"] = f"{ours:.3f}, by hand {hand:.3f}"


def _libraries(setup: Setup, findings: Findings, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The large model by hand, with accel, and with the other libraries that are installed."""
    steps = dict[str, Callable[[], object]]()
    for who, contestant in CONTESTANTS.items():
        with findings.part(f"libraries, {who}"):
            model = _language(setup).to(setup.kind)
            step = contestant(model, AdamW(model.parameters(), lr=1e-4), "bf16", setup.rehearsal)
            for _ in range(setup.size(WARM_UP, 1)):
                step(*batch)
            # mypy infers no lambda with a default
            steps[who] = lambda step=step: step(*batch)  # type: ignore[misc]
    if "by hand" not in steps:
        raise Skipped("the step by hand failed")
    cost = interleaved(setup, steps, round_s=0.5)
    findings.facts["libraries: ms by hand"] = cost["by hand"].ms
    findings.facts |= {f"libraries, {who}": f"{it} of it" for who, it in cost.items() if who != "by hand"}
