"""Take the place of one rank of a job whose other ranks do not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import PropertyMock, patch

import torch
import torch.distributed as dist
from accel_ops.packing import SMALL, travels_small
from accel_state import run_context
from accel_state.data_ranks import DataRanks
from accel_state.devices.cpu import Cpu
from accel_state.environ import FLIGHT_RECORDER, STORE_FD, change, worker_environ
from accel_state.run import Run, RunRequest
from accel_state.topology import Topology
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from accel_rehearse.equal_peers import EqualPeers


def become_rank(topology: Topology, *, on_call: Callable[[str], None]) -> None:
    """Let the process be a rank from now on. Its environment says so.

    Args:
        topology: The place of the rank.
        on_call: What is told of each call that all ranks have to make.
    """
    change({**worker_environ(topology), "MASTER_PORT": "1", STORE_FD: None, FLIGHT_RECORDER: None})
    size = topology.world_size
    if size == 1:
        return
    dist.init_process_group("fake", store=FakeStore(), rank=topology.rank, world_size=size)
    peers = EqualPeers(topology.rank, size, on_call=on_call)

    def start(request: RunRequest) -> Run:
        run_context._refuse_mesh(request.mesh, size)
        run_context._group = request.group
        run = Run(topology, Cpu(), torch.device("cpu"), peers, request.precision)
        return run_context._arranged(run, request.mesh)

    changed: Any  # as each patch has a type of its own
    for changed in (
        patch.object(run_context, "_start", start),
        # each rank speaks for those that would speak for it
        patch.object(DataRanks, "_speaks", PropertyMock(return_value=True), create=True),
        # the states of random numbers come from a process that has the same
        patch("accel_data.resume.sampling_rng._of_first", lambda _, capture: capture()),
        *(
            patch(f"accel_ops.{name}.travels_small", _travel_small)
            for name in ("gather", "reduce", "broadcast", "scatter")
        ),
    ):
        changed.start()


def _travel_small(tensors: Sequence[torch.Tensor], room: int = SMALL) -> bool:
    """Return whether tensors are sent by their numbers in a message, which fakes do not have."""
    return travels_small(tensors, room) and not any(isinstance(tensor, FakeTensor) for tensor in tensors)
