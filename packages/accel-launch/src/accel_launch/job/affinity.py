"""Choose cores for each process of a machine: the cores next to its GPU, or its share of all cores."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SYSTEM = Path("/")
_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)


def shares_of_cores(count: int, nodes: Sequence[int | None], cores: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the cores of each process. Processes of a node share its cores evenly.

    Args:
        count: Number of processes.
        nodes: NUMA node next to the GPU of each process. If one of them is None, all processes share all cores.
        cores: Cores of each node.
    """
    known = list(nodes[:count])
    by_node = dict[int | None, Collection[int]](cores.items())
    by_node[None] = {core for of_node in cores.values() for core in of_node}
    if len(known) < count or None in known or not all(map(by_node.get, known)):
        known = [None] * count
    shares = []
    for rank, node in enumerate(known):
        shared, at, of = sorted(by_node[node]), known[:rank].count(node), known.count(node)
        share = shared[len(shared) * at // of : len(shared) * (at + 1) // of]
        shares.append(share or shared)  # more processes than cores
    return shares


def cores_of_processes(count: int, gpus: Sequence[str], system: Path = SYSTEM) -> list[list[int]]:
    """Return the cores for each process of this machine, or empty lists if they cannot be bound.

    Args:
        count: Number of processes.
        gpus: Number or UUID of the GPU of each process.
        system: Folder that has the files of the system.
    """
    if sys.platform != "linux":
        return [[] for _ in range(count)]
    allowed = os.sched_getaffinity(0)
    cores = {node: [core for core in some if core in allowed] for node, some in _cores_of_nodes(system).items()}
    cores = {node: some for node, some in cores.items() if some} or {0: sorted(allowed)}
    return shares_of_cores(count, _nodes_of_gpus(gpus, system), cores)


def _cores_of_nodes(system: Path) -> dict[int, list[int]]:
    cores = {}
    for folder in (system / "sys/devices/system/node").glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            cores[int(folder.name.removeprefix("node"))] = _numbers((folder / "cpulist").read_text())
    return cores


def _nodes_of_gpus(gpus: Sequence[str], system: Path) -> list[int | None]:
    """Return the NUMA node of each GPU, by its number in the order of the bus or the begin of its UUID, or None."""
    names: dict[str, str] = {}
    for number, folder in enumerate(sorted((system / "proc/driver/nvidia/gpus").glob("*:*"))):
        names[str(number)] = folder.name
        with suppress(OSError):
            names |= dict.fromkeys(_UUID.findall((folder / "information").read_text()), folder.name)
    nodes: list[int | None] = []
    for gpu in gpus:
        node = None
        uuids = (name for name in names if gpu.startswith("GPU-") and name.startswith(gpu))
        with suppress(OSError, ValueError, KeyError):
            place = names[gpu if gpu in names else next(uuids, "")]
            number = int((system / "sys/bus/pci/devices" / place.lower() / "numa_node").read_text())
            node = number if number >= 0 else None
        nodes.append(node)
    return nodes


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list as Linux writes them, such as 0-3,8."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
