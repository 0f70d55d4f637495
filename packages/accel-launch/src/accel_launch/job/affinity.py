"""Choose cores for each process of a machine: the cores next to its GPU, or its share of all cores."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SYSTEM = Path("/")
#: a range of cores in a list as Linux writes them, such as 0-3,8
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def shares_of_cores(count: int, nodes: Sequence[int | None], cores: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the cores of each process. Processes of a node share its cores evenly.

    Args:
        count: Number of processes.
        nodes: NUMA node next to the GPU of each process. If one of them is None, all processes share all cores.
        cores: Cores of each node.
    """
    groups = [cores[node] for node in nodes[:count] if node is not None and node in cores]
    if len(groups) < count:
        groups = [[core for of_node in cores.values() for core in of_node]] * count
    shares = []
    for rank, group in enumerate(groups):
        shared, at, of = sorted(group), groups[:rank].count(group), groups.count(group)
        share = shared[len(shared) * at // of : len(shared) * (at + 1) // of]
        shares.append(share or shared)  # more processes than cores
    return shares


def cores_of_processes(count: int, gpus: Sequence[str], system: Path = SYSTEM) -> list[list[int]]:
    """Return the cores for each process of this machine, or empty lists if they cannot be bound.

    Args:
        count: Number of processes.
        gpus: Number of the GPU of each process. With a UUID in the place of any, all processes share all cores.
        system: Folder that has the files of the system.
    """
    if sys.platform != "linux":
        return [[] for _ in range(count)]
    allowed, cores = os.sched_getaffinity(0), {}
    for folder in (system / "sys/devices/system/node").glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            listed = _RANGE.findall((folder / "cpulist").read_text())
            of_node = {core for first, last in listed for core in range(int(first), int(last or first) + 1)}
            cores[int(folder.name.removeprefix("node"))] = sorted(allowed & of_node)
    cores = {node: some for node, some in cores.items() if some} or {0: sorted(allowed)}
    return shares_of_cores(count, _nodes_of_gpus(gpus[:count], system), cores)


def _nodes_of_gpus(gpus: Sequence[str], system: Path) -> list[int]:
    """Return the NUMA node of each GPU, by its number on the bus, or none if one is unknown."""
    on_bus = sorted(folder.name.lower() for folder in (system / "proc/driver/nvidia/gpus").glob("*:*"))
    devices = system / "sys/bus/pci/devices"
    try:
        return [int((devices / on_bus[int(gpu)] / "numa_node").read_text()) for gpu in gpus]
    except (OSError, ValueError, IndexError):
        return []
