"""Compiled models, whole and block by block, alone and sharded: costs, graphs and losses against torch's own calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import torch
from accel import TorchDynamoPlugin
from accel_parallel.strategies.fsdp2 import Fsdp2
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gpu_checks.check import Findings, Setup
from gpu_checks.loops import BACKEND, Batches, Loop, Step, by_accel, by_hand
from gpu_checks.measure import clean, interleaved
from gpu_checks.one_rank import accelerator_in_group, group_of_one
from gpu_checks.training import Language, texts

STEPS, CLOSE = 6, 2e-2
#: on the GPU, and rehearsed
WORDS = (4_000, 50)
STEP = Step(precision="bf16")
#: notes the graph and runs it as it is, in a rehearsal
BACKEND_OF_REHEARSAL = "eager"


@dataclass(frozen=True, slots=True)
class Mode:
    """How a model is compiled: block by block or as a whole, by a mode of torch's or none, sharded or not."""

    regional: bool = False
    mode: str | None = None
    sharded: bool = False


MODES = {
    "default": Mode(),
    "regional": Mode(regional=True),
    "reduce-overhead": Mode(mode="reduce-overhead"),
    "fsdp2, regional": Mode(regional=True, sharded=True),
    "fsdp2, reduce-overhead": Mode(regional=True, mode="reduce-overhead", sharded=True),
}


def run(setup: Setup, findings: Findings) -> None:
    """Compiles in each way by hand and with accel, and compares both with eager steps."""
    with group_of_one(setup) as device:
        data = texts(device, 1, setup.size(8, 2), setup.size(512, 8), setup.size(*WORDS))
        eager = by_hand(setup, STEP, _language(setup).to(device), data)
        expected = [float(eager()) for _ in range(STEPS)]
        for name, mode in MODES.items():
            with findings.part(name):
                loops = {"by hand": _by_hand(setup, mode, device, data), "accel": _by_accel(setup, mode, data)}
                _compare(setup, findings, name, loops, expected)
            torch._dynamo.reset()
            clean(setup)


def _language(setup: Setup) -> Language:
    torch.manual_seed(0)
    return Language(setup.size(*WORDS), setup.size(1024, 32), setup.size(4, 2))


def _backend(setup: Setup) -> str:
    return BACKEND_OF_REHEARSAL if setup.rehearsal else BACKEND


def _by_hand(setup: Setup, mode: Mode, device: torch.device, data: Batches) -> Loop:
    model = _language(setup).to(device)
    blocks: list[nn.Module] = list(model.layers)
    for module in blocks if mode.regional else [model]:
        module.compile(backend=_backend(setup), mode=mode.mode)
    if mode.sharded:
        mesh = init_device_mesh(device.type, (1,), mesh_dim_names=("dp_shard",))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in [*blocks, model]:
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=module is not model)
    return by_hand(setup, STEP, model, data, autocast=not mode.sharded)


def _by_accel(setup: Setup, mode: Mode, data: Batches) -> Loop:
    plugin = TorchDynamoPlugin(backend=_backend(setup), mode=mode.mode, use_regional_compilation=mode.regional)
    strategy = Fsdp2() if mode.sharded else "single"
    accelerator = accelerator_in_group(setup, strategy, STEP.precision, dynamo_plugin=plugin)
    return by_accel(accelerator, STEP, _language(setup).to(accelerator.device), data)


def _compare(setup: Setup, findings: Findings, name: str, loops: Mapping[str, Loop], expected: list[float]) -> None:
    losses, told = dict[str, list[float]](), dict[str, str]()
    for who, loop in loops.items():
        before, began = counters["stats"]["unique_graphs"], perf_counter()
        losses[who] = [float(loop())]
        first = perf_counter() - began
        losses[who] += [float(loop()) for _ in range(STEPS - 1)]
        told[who] = f"{counters['stats']['unique_graphs'] - before} graphs, first step {first:.1f} s"
    cost = interleaved(setup, loops, rounds=5)
    worst = max(abs(mine - theirs) / theirs for mine, theirs in zip(losses["accel"], expected, strict=True))
    findings.facts |= {
        f"{name}: ms by hand": cost["by hand"].ms,
        f"{name}: of it": str(cost["accel"]),
        # what is compiled second finds code of the first in a store
        f"{name}: compiled": f"{told['accel']}; before, by hand, {told['by hand']}",
        f"{name}: loss": f"{losses['accel'][0]:.4f} to {losses['accel'][-1]:.4f}, within {worst:.1g} of eager",
    }
    assert worst <= CLOSE, f"losses {losses['accel']}, eager {expected}, compiled by hand {losses['by hand']}"
