"""Make models ready whose sequences are divided over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import unwrap
from typing import ClassVar, final

from accel_state import Run
from torch import nn

from accel_sequence.divided_forward import DividedForward
from accel_sequence.division import Ranks
from accel_sequence.layout import SequenceLayout
from accel_sequence.models import reach
from accel_sequence.peers import GroupPeers


@final
class Sequences:
    """The division of sequences in a run.

    Args:
        run: The current run, whose mesh has ranks that share sequences.
    """

    #: calls of the facade that cannot be served, with the reason and what to do instead
    refusals: ClassVar[Mapping[str, str]] = {
        "local steps (LocalSGD)": "a rank has the gradients of a part of each sequence, and cannot train alone; leave"
        " LocalSGD out, or sp_size and cp_size",
        "join_uneven_inputs": "ranks that share sequences exchange in each forward, so all need equally many batches;"
        " use even_batches=True, or ending='drop'",
    }

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ranks: Ranks | None = None

    def divide(self, model: nn.Module) -> None:
        """Let the forward of a model work on the part of this rank.

        Raises:
            CannotDivide: The model cannot be divided.

        Collective:
            Every process must call.
        """
        # a precision or a recomputation may be around it
        if isinstance(unwrap(model.forward, stop=lambda one: isinstance(one, DividedForward)), DividedForward):
            return
        reached = reach(model)
        if self._ranks is None:
            self._ranks = open_ranks(self._run)
        model.forward = DividedForward(model.forward, model, self._ranks, reached)


def open_ranks(run: Run) -> Ranks:
    """Open the process groups of the ranks that share sequences, and return them as this process sees them.

    Collective:
        Every process must call.
    """
    from torch.distributed.device_mesh import init_device_mesh

    ring, heads = run.mesh.context, run.mesh.sequence
    shape = (run.topology.world_size // (ring * heads), ring, heads)
    mesh = init_device_mesh(run.placed_on.type, shape, mesh_dim_names=("data", "cp", "sp"))
    both = mesh["cp", "sp"]._flatten("cp_sp")
    return Ranks(
        SequenceLayout(ring, heads),
        GroupPeers(both.get_group()),
        GroupPeers(mesh.get_group("sp")) if heads > 1 else None,
        GroupPeers(mesh.get_group("cp")) if ring > 1 else None,
    )
