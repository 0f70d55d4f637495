"""The workers of torchrun and of `accel launch`: RANK and WORLD_SIZE, which always win."""

from collections.abc import Mapping
from typing import ClassVar, final

from accel_state.environ import STORE_FD, STORE_PORT, integers
from accel_state.environments._base import Environment, environ_rendezvous
from accel_state.topology import ACCEL_LAUNCH, TORCHRUN, Rendezvous, Topology


@final
class Elastic(Environment):
    """A process whose launcher set RANK and WORLD_SIZE."""

    priority: ClassVar[int] = 100

    @classmethod
    def topology(cls, environ: Mapping[str, str]) -> Topology | None:
        """Return the rank that RANK and WORLD_SIZE give. By default all processes are on one machine."""
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            return None
        launcher = ACCEL_LAUNCH if _from_accel_launch(environ) else TORCHRUN
        names = ["RANK", "WORLD_SIZE"]
        if "LOCAL_WORLD_SIZE" in environ:
            names += ["LOCAL_RANK", "LOCAL_WORLD_SIZE"]
        elif "LOCAL_RANK" in environ:  # some launchers say no more
            names.append("LOCAL_RANK")
        if "GROUP_RANK" in environ:
            names.append("GROUP_RANK")
        place = dict(zip(names, integers(environ, names, launcher), strict=True))
        rank, world_size = place["RANK"], place["WORLD_SIZE"]
        return Topology(
            rank=rank,
            world_size=world_size,
            local_rank=place.get("LOCAL_RANK", rank),
            local_world_size=place.get("LOCAL_WORLD_SIZE", world_size),
            node_rank=place.get("GROUP_RANK", 0),
            rendezvous=_rendezvous(environ) if world_size > 1 else None,
            launcher=launcher,
        )


def _from_accel_launch(environ: Mapping[str, str]) -> bool:
    # A worker of accel launch may itself start torchrun, whose workers inherit the variables of the outer job.
    return STORE_PORT in environ and "TORCHELASTIC_RUN_ID" not in environ


def _rendezvous(environ: Mapping[str, str]) -> Rendezvous | None:
    if not _from_accel_launch(environ):
        return environ_rendezvous(environ, TORCHRUN)
    (port,) = integers(environ, (STORE_PORT,), ACCEL_LAUNCH)
    fd = integers(environ, (STORE_FD,), ACCEL_LAUNCH)[0] if STORE_FD in environ else None
    return Rendezvous(environ.get("MASTER_ADDR", "127.0.0.1"), port, listen_fd=fd)


ENVIRONMENT = Elastic
