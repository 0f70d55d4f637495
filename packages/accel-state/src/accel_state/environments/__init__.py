"""Find out the topology, with a file for each launcher."""

from collections.abc import Mapping

from accel_state.environments._base import Environment
from accel_state.registry import Registry
from accel_state.topology import Topology

ENVIRONMENTS: Registry[type[Environment]] = Registry(__name__, "accel.environments", "ENVIRONMENT")


def detect(environ: Mapping[str, str]) -> Topology:
    """Return the topology that a launcher reports in the environment.

    Launchers are asked in order of priority; a single process has none.

    Raises:
        TopologyError: If a launcher's variables are incomplete or contradict each other.
    """
    known = sorted(
        (ENVIRONMENTS.load(name) for name in ENVIRONMENTS.names()), key=lambda environment: -environment.priority
    )
    for environment in known:
        topology = environment.topology(environ)
        if topology is not None:
            return topology
    return Topology()
