"""Steps of fsdp2 and ddp in a group of one, through NCCL: waits, costs, memory and losses against torch's own calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accel_parallel.fsdp_options import FullyShardedDataParallelPlugin
from accel_parallel.stages.gradient_comparison import LAST, GradientComparison
from accel_parallel.strategies.ddp import Ddp
from accel_parallel.strategies.fsdp2 import Fsdp2
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gpu_checks.check import Findings, Setup
from gpu_checks.loops import DTYPES, Batches, Loop, Step, by_accel, by_hand, scaling
from gpu_checks.measure import clean, host_ms, interleaved, step_gib
from gpu_checks.one_rank import accelerator_in_group, group_of_one
from gpu_checks.training import Language, texts
from gpu_checks.waits import in_words, waiting_calls, waits_in

STEPS = 4
#: on the GPU, and rehearsed
WORDS = (16_000, 50)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a model is spread and trained.

    Args:
        step: What each step does.
        sharded: Whether by fsdp2, and not by ddp.
        offload: Whether parts are on the host between forwards.
        close: How much the losses may differ from those by hand, as a share.
    """

    step: Step
    sharded: bool = True
    offload: bool = False
    close: float = 1e-4


#: autocast computes norms and losses in float32, which fully_shard's own policy does not
KINDS = {
    "fsdp2": Kind(Step()),
    "fsdp2, bf16, clipped": Kind(Step(clip=True, precision="bf16"), close=2e-2),
    "fsdp2, fp16, fused, clipped": Kind(Step(clip=True, precision="fp16", fused=True, scheduled=False), close=2e-2),
    "fsdp2, bf16, accumulated": Kind(Step(every=2, clip=True, precision="bf16"), close=2e-2),
    "fsdp2, cpu_offload, clipped": Kind(Step(clip=True), offload=True),
    "ddp, bf16, clipped": Kind(Step(clip=True, precision="bf16"), sharded=False, close=1e-3),
    "ddp, fp16, fused": Kind(Step(precision="fp16", fused=True, scheduled=False), sharded=False, close=1e-3),
}


def run(setup: Setup, findings: Findings) -> None:
    """Compares each kind of step with the same by hand, and then looks if a comparison of gradients ends."""
    with group_of_one(setup) as device:
        for name, kind in KINDS.items():
            with findings.part(name):
                _compare(setup, findings, name, kind, device)
            clean(setup)
        with findings.part("fsdp2, small"):
            _costs_of_host(setup, findings, device)
        with findings.part("GradientComparison"):
            _ends(setup, findings, device)


def _language(setup: Setup) -> nn.Module:
    torch.manual_seed(0)
    return Language(setup.size(*WORDS), setup.size(1024, 32), setup.size(8, 2))


def _data(setup: Setup, device: torch.device, count: int, tokens: int = 512) -> Batches:
    return texts(device, count, setup.size(8, 2), setup.size(tokens, 8), setup.size(*WORDS))


def _sharded_by_hand(model: Any, kind: Kind, mesh: DeviceMesh) -> nn.Module:
    """The model as torch's documentation shards it, block by block."""
    half = DTYPES.get(kind.step.precision)
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
    # on the CPU weights are where they would be sent to
    offloads = kind.offload and mesh.device_type != "cpu"
    for module in [*model.layers, model]:
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=module is not model,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy() if offloads else OffloadPolicy(),
        )
    made: nn.Module = model
    return made


def _pair(
    setup: Setup, kind: Kind, device: torch.device, data: Batches, make: Callable[[Setup], nn.Module]
) -> dict[str, Loop]:
    """The loops by hand and with accel."""
    if kind.sharded:
        model = make(setup) if kind.offload else make(setup).to(device)
        mesh = init_device_mesh(device.type, (1,), mesh_dim_names=("dp_shard",))
        hand = by_hand(setup, kind.step, _sharded_by_hand(model, kind, mesh), data, autocast=False)
    else:
        container = DistributedDataParallel(
            make(setup).to(device), device_ids=None if device.type == "cpu" else [device]
        )
        hand = by_hand(setup, kind.step, container, data)
    plugin = FullyShardedDataParallelPlugin(cpu_offload=kind.offload)
    accelerator = accelerator_in_group(
        setup,
        Fsdp2(plugin) if kind.sharded else Ddp(),
        kind.step.precision,
        gradient_accumulation_steps=kind.step.every,
        kwargs_handlers=scaling(),
    )
    return {"by hand": hand, "accel": by_accel(accelerator, kind.step, make(setup), data)}


def _compare(setup: Setup, findings: Findings, name: str, kind: Kind, device: torch.device) -> None:
    loops = _pair(setup, kind, device, _data(setup, device, kind.step.every), _language)
    losses = {who: torch.stack([loop() for _ in range(STEPS)]).tolist() for who, loop in loops.items()}
    cost = interleaved(setup, loops, rounds=5 if kind.offload else 7)
    memory = {who: step_gib(setup, loop) for who, loop in loops.items()}
    hand, ours = losses.values()
    worst = max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(ours, hand, strict=True))
    findings.facts |= {
        f"{name}: ms by hand": cost["by hand"].ms,
        f"{name}: of it": str(cost["accel"]),
        f"{name}: GiB of a step": f"{memory['accel']:.3f}, by hand {memory['by hand']:.3f}",
        f"{name}: loss": f"{hand[0]:.4f} to {hand[-1]:.4f}, within {worst:.1g}",
    }
    with findings.part(f"{name}: waiting calls"):
        calls = {who: in_words(waiting_calls(setup, loop)) for who, loop in loops.items()}
        findings.facts[f"{name}: waiting calls"] = f"{calls['accel']}, by hand {calls['by hand']}"
    if not setup.rehearsal:
        places, of_hand = waits_in(loops["accel"]), waits_in(loops["by hand"])
        findings.facts[f"{name}: waits"] = f"{len(places)}, by hand {len(of_hand)}"
        # a step of offloaded parts, which the host makes, waits for their gradients
        fewer = kind.offload or len(places) <= len(of_hand)
        assert fewer, "\n".join([f"waits by hand {len(of_hand)}, with accel:", *places])
    assert hand[-1] < hand[0], f"it does not learn: {hand}"
    assert worst <= kind.close, f"losses {ours}, by hand {hand}"


def _small(setup: Setup) -> nn.Module:
    torch.manual_seed(0)
    return Language(setup.size(*WORDS), 64, setup.size(6, 2))


def _costs_of_host(setup: Setup, findings: Findings, device: torch.device) -> None:
    """A model so small that the GPU waits for the host: what a step costs the host alone."""
    kind = Kind(Step(clip=True, precision="bf16"))
    loops = _pair(setup, kind, device, _data(setup, device, 1, tokens=8), _small)
    for loop in loops.values():
        for _ in range(3):
            loop()
    cost = interleaved(setup, loops)
    findings.facts |= {
        "fsdp2, small: ms by hand": cost["by hand"].ms,
        "fsdp2, small: of it": str(cost["accel"]),
        "fsdp2, small: ms of the host": f"{host_ms(setup, loops['accel'], queued=1):.3f},"
        f" by hand {host_ms(setup, loops['by hand'], queued=1):.3f}",
    }


class _Partly(nn.Module):
    """A model with a parameter that never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(64, 16), nn.Linear(64, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shape: (batch, 64) -> (batch, 16)."""
        outputs: Tensor = self.used(inputs)
        return outputs


def _ends(setup: Setup, findings: Findings, device: torch.device) -> None:
    """Counts the waits of backwards while gradients are compared, and after the comparison has given up."""
    model = _Partly().to(device)
    GradientComparison(model, init_device_mesh(device.type, (1,)), device)
    inputs, targets = torch.randn(8, 64, device=device), torch.zeros(8, dtype=torch.int64, device=device)

    def backward() -> None:
        model.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call] # of torch

    backward()
    if setup.rehearsal:
        during, after = 0, 0
        for _ in range(LAST):
            backward()
    else:
        during = sum(len(waits_in(backward)) for _ in range(LAST - 1))
        after = sum(len(waits_in(backward)) for _ in range(LAST))
    findings.facts["GradientComparison"] = f"{during} waits in {LAST - 1} backwards, {after} in the {LAST} after them"
    assert after == 0, f"{after} waits after {LAST} backwards: the comparison does not end"
