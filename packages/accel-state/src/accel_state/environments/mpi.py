"""The processes of mpirun or mpiexec: Open MPI, and the Hydra family (MPICH, Intel MPI)."""

from collections.abc import Mapping
from typing import ClassVar, final

from accel_state.environ import integers
from accel_state.environments._base import Environment, environ_rendezvous
from accel_state.topology import Topology

# rank, size, rank on this machine, size on this machine
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


@final
class Mpi(Environment):
    """A process that an MPI launcher started."""

    priority: ClassVar[int] = 50

    @classmethod
    def topology(cls, environ: Mapping[str, str]) -> Topology | None:
        """Return the rank that Open MPI, MPICH or Intel MPI gave this process."""
        for launcher, names in (("Open MPI", OPEN_MPI), ("MPICH or Intel MPI", HYDRA)):
            # SLURM's own plug-in for PMI sets PMI_RANK and PMI_SIZE in every step, but none of the others
            # (slurm/src/plugins/mpi/pmi2): SLURM then knows the rest, and nobody called mpirun.
            of_slurm = "SLURM_STEP_NUM_TASKS" in environ and names[2] not in environ
            if names[0] in environ and not of_slurm:
                rank, world_size, local_rank, local_world_size = integers(environ, names, launcher)
                return Topology(
                    rank=rank,
                    world_size=world_size,
                    local_rank=local_rank,
                    local_world_size=local_world_size,
                    rendezvous=environ_rendezvous(environ, launcher) if world_size > 1 else None,
                    launcher=launcher,
                )
        return None


ENVIRONMENT = Mpi
