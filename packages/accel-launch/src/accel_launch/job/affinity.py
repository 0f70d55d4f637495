"""Choose cores for each process of a machine: the cores next to its GPU, or its share of all cores."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
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
    everything = sorted({core for of_node in cores.values() for core in of_node})
    places = list(nodes[:count])
    if len(places) < count or not all(node is not None and cores.get(node) for node in places):
        places = [None] * count
    shares = []
    for rank, node in enumerate(places):
        mates = [mate for mate, other in enumerate(places) if other == node]
        shared = sorted(cores[node]) if node is not None else everything
        at, of = mates.index(rank), len(mates)
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
    """Return the NUMA node of each GPU, by its number in the order of the bus or its UUID, or None."""
    folders = sorted((system / "proc/driver/nvidia/gpus").glob("*:*"))
    places = {str(number): folder.name for number, folder in enumerate(folders)}
    nodes: list[int | None] = []
    for gpu in gpus:
        node = None
        place = places.get(gpu) or _place_of_uuid(gpu, folders)
        with suppress(OSError, ValueError):
            text = (system / "sys/bus/pci/devices" / place.lower() / "numa_node").read_text()
            node = int(text) if int(text) >= 0 else None
        nodes.append(node)
    return nodes


def _place_of_uuid(gpu: str, folders: Sequence[Path]) -> str:
    """Find the bus address of the GPU whose UUID begins so, as CUDA takes it, or "none"."""
    for folder in folders:
        with suppress(OSError):
            match = _UUID.search((folder / "information").read_text())
            if match and gpu.startswith("GPU-") and match[1].startswith(gpu):
                return folder.name
    return "none"


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list as Linux writes them, such as 0-3,8."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
