"""A process group of one, and Accelerators in it that shard and exchange as in a job of several ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accel import Accelerator
from accel_comm.transports.torch_dist import TorchDist
from accel_parallel import Strategy
from accel_state import RunRequest, acquire, release, run_context
from accel_state.devices import choose
from accel_state.mesh import MeshSpec
from torch._C._distributed_c10d import FileStore

from gpu_checks.check import Setup


@contextmanager
def group_of_one(setup: Setup) -> Iterator[torch.device]:
    """The device, with torch's default group open as accel opens it: through gloo and NCCL."""
    hardware = choose(cpu=setup.rehearsal)
    device = hardware.place(0)
    store = FileStore(str(Path(tempfile.mkdtemp()) / "store"), 1)
    dist.init_process_group(hardware.group_backend, store=store, rank=0, world_size=1)
    try:
        yield device
    finally:
        release()
        dist.destroy_process_group()


def accelerator_in_group(setup: Setup, strategy: Strategy | str, precision: str, **settings: Any) -> Accelerator:
    """An Accelerator whose run has a transport and a mesh, which one process has no need of.

    Args:
        setup: Where this runs.
        strategy: How models are spread.
        precision: Name of the precision.
        **settings: Other arguments of the Accelerator.
    """
    release()
    run = acquire(RunRequest(cpu=setup.rehearsal, precision=precision))
    kind, mesh = run.placed_on.type, MeshSpec()
    transport = TorchDist(device=kind)
    run_context._process = replace(run, asked_mesh=mesh, device_mesh=mesh.build(kind), transport=transport)
    return Accelerator(cpu=setup.rehearsal, strategy=strategy, mixed_precision=precision, **settings)
