"""What cannot work on this hardware is refused at once, in words that say what to do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from accel import Accelerator
from accel_amp.precisions import PRECISIONS
from accel_state import Topology, release
from accel_state.devices import choose
from accel_state.rendezvous import join_group
from torch._C._distributed_c10d import FileStore

from gpu_checks.check import Findings, Setup, Skipped
from gpu_checks.ranks import on_ranks


def run(setup: Setup, findings: Findings) -> None:
    """Asks for each of the impossible, and looks for the words of the answer."""
    with findings.part("a group that does not serve the CPU"):
        findings.facts["a group that does not serve the CPU"] = _words(_group_without_cpu, "serves")
    with findings.part("more processes than GPUs"):
        setup.need_cuda()
        count = torch.cuda.device_count()
        if count == 1:
            raise Skipped("one GPU serves any number of processes that say so")
        _words(lambda: choose(cpu=False).place(count), f"needs GPU {count}")
    with findings.part("ranks that share a GPU"):
        setup.need_cuda()
        answers = on_ranks([shares_a_gpu], size=2, timeout_s=60)["shares_a_gpu"]
        for rank, answer in enumerate(answers):
            assert answer.failure is None, f"rank {rank}: {answer.failure}"
        findings.facts["ranks that share a GPU"] = str(answers[0].result)
    for name in ("bf16", "fp16", "fp8"):
        with findings.part(f"precision {name}"):
            why = PRECISIONS.load(name)().missing(setup.kind)
            if why is None:
                raise Skipped("it runs here")
            # mypy infers no lambda with a default
            findings.facts[f"precision {name}"] = _words(lambda name=name: _accelerator(setup, name), why[:20])  # type: ignore[misc]


def _words(attempt: Callable[[], object], expected: str) -> str:
    """The first line of the refusal."""
    refusal: Exception | None = None
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - the words are what is looked at
        refusal = error
    assert refusal is not None, "it was not refused"
    assert expected in str(refusal), f"expected {expected!r} in {refusal!r}"
    return f"{type(refusal).__name__}: {refusal}".splitlines()[0][:160]


def _accelerator(setup: Setup, precision: str) -> None:
    release()
    Accelerator(cpu=setup.rehearsal, mixed_precision=precision)


def _group_without_cpu() -> None:
    """A group that a script has opened for one kind of device; the CPU needs another part."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    wanted = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo,elsewhere:gloo"
    store = FileStore(str(Path(tempfile.mkdtemp()) / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        join_group(Topology(), wanted)
    finally:
        dist.destroy_process_group()


def shares_a_gpu() -> str:
    """The refusal on a rank that sees the GPU of another, and no more."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
    return _words(Accelerator, "ranks 0, 1 see only")
