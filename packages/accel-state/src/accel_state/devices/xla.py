"""A device for TPUs and other hardware behind torch_xla."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, final

from accel_state.devices._base import Device
from accel_state.errors import CannotRun

if TYPE_CHECKING:
    import torch

    from accel_state.topology import Topology


SIGN = 1 << 63


@final
class Xla(Device):
    """The device that torch_xla gives this process.

    Operations are collected, and run at the end of each step.
    """

    kind = "xla"

    def __init__(self) -> None:
        if find_spec("torch_xla") is None:
            raise CannotRun(
                "PJRT_DEVICE is set, which asks for XLA",
                ["torch_xla is not installed; install it, unset PJRT_DEVICE, or ask for the CPU (cpu=True)"],
            )
        import torch_xla

        # runs what was collected: without it the graph of the next step would contain this one's
        self.step_boundary = torch_xla.sync

    def join(self, topology: Topology) -> None:
        """Let the runtime connect this process, and compare its world with the launcher's.

        Each rank that the runtime does not connect would train alone: its exchanges return its own values, in silence.
        """
        from torch_xla import runtime

        if topology.world_size > 1:
            from torch_xla._internal import pjrt

            # as torch_xla.launch and its rendezvous under torchrun do; the world that is asked for first is the last
            pjrt.initialize_multiprocess(topology.local_rank, topology.local_world_size)
        found, asked = runtime.world_size(), topology.world_size
        if found != asked:
            raise CannotRun(
                f"XLA in a job of {asked} (launcher: {topology.launcher})",
                [
                    f"on rank {topology.rank} the runtime of torch_xla connects {found}, and values of others would not"
                    " arrive; start one process for each device of a TPU with accel launch or torchrun, or one in all"
                    " (Accelerator(strategy='spmd') drives all devices); PJRT_DEVICE=CPU connects no processes"
                ],
            )

    @property
    def group_backend(self) -> str:
        """The backend that exchanges tensors of XLA by the runtime, and those of the CPU by gloo."""
        from accel_state.devices._xla_group import register

        return register()

    def place(self, local_rank: int | None) -> torch.device:
        import torch_xla

        device: torch.device = torch_xla.device()
        return device

    def hardware_id(self, placed_on: torch.device) -> str | None:
        """Return None: the runtime gives each process a device of its own."""
        return None

    def rng_state(self) -> torch.Tensor:
        """Return the seed of the XLA generator, as a tensor on the CPU."""
        import torch
        import torch_xla.core.xla_model

        seed = torch_xla.core.xla_model.get_rng_state()
        # it has 64 bits and no sign, and torch's whole numbers have one
        return torch.tensor([(seed + SIGN) % (2 * SIGN) - SIGN], device="cpu")

    def set_rng_state(self, state: torch.Tensor) -> None:
        import torch_xla.core.xla_model

        torch_xla.core.xla_model.set_rng_state(int(state.item()) % (2 * SIGN))

    def release_memory(self) -> None:
        """Do nothing: the runtime keeps no cache that it could give back."""


DEVICE = Xla
