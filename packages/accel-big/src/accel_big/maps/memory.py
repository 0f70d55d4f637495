"""Find out how much memory each device may give to a model."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from accel_checkpoint import size_in_bytes
from accel_state.errors import CannotRun

from accel_big.maps.check_map import INDICES

DeviceKey = int | str
Memory = Mapping[DeviceKey, int | str]


def get_max_memory(max_memory: Memory | None = None) -> dict[DeviceKey, int]:
    """Return the memory that each device may take, accelerators first, then "cpu", then "disk".

    Args:
        max_memory: Limits by the index of an accelerator, "cpu" or "disk", in bytes or as text such as "10GB". They may
            be those of another machine. Default: the free memory of all accelerators and of the CPU.

    Raises:
        CannotRun: A name or a size is wrong, or a device does not say what is free. The error lists all.

    Units:
        Bytes.
    """
    if max_memory is None:
        return {**_free_of_accelerators(), "cpu": free_of_cpu()}
    problems, sizes = [], {}
    for device, size in max_memory.items():
        try:
            sizes[device] = size_in_bytes(size, least=0)
        except ValueError as error:
            problems.append(f"{device!r}: {error}")
        if device not in ("cpu", "disk") and (type(device) is not int or device not in INDICES):
            problems.append(f"{device!r} is not a device: expected 'cpu', 'disk' or the index of an accelerator")
    if problems:
        raise CannotRun(f"max_memory={dict(max_memory)!r}", problems)
    return in_order(sizes)


def in_order(sizes: Mapping[DeviceKey, int]) -> dict[DeviceKey, int]:
    """Return the same sizes, those of accelerators first, then of "cpu", then of "disk"."""
    accelerators: list[DeviceKey] = sorted(device for device in sizes if isinstance(device, int))
    return {device: sizes[device] for device in (*accelerators, "cpu", "disk") if device in sizes}


def _free_of_accelerators() -> dict[DeviceKey, int]:
    """Return the free bytes of each accelerator. Raise CannotRun if the device does not say."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return {}
    module = torch.get_device_module(accelerator)
    if "mem_get_info" in vars(module):
        return {index: module.mem_get_info(index)[0] for index in range(torch.accelerator.device_count())}
    reason = (
        f"{accelerator.type} does not tell torch how much memory is free; give max_memory={{0: '10GB', 'cpu': ...}}"
    )
    raise CannotRun("the free memory of accelerators", [reason])


def free_of_cpu(root: Path = Path("/")) -> int:
    """Return the memory that this process can still get, also inside a container.

    Args:
        root: Folder that has the files of the system.

    Raises:
        CannotRun: The system does not say.

    Units:
        Bytes.
    """
    if sys.platform == "linux":
        fields = _fields(root / "proc/meminfo")
        if "MemAvailable:" in fields:
            return max(0, min([fields["MemAvailable:"] * 1024, *_free_of_groups(root)]))
    elif "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    raise CannotRun("the free memory of the CPU", ["the system does not tell it; give max_memory={'cpu': '10GB'}"])


def room_for_files() -> int:
    """Return how many bytes of files may stay mapped into memory: half of the free memory.

    It is 0 if the process has a limit of addresses: pages of files go when the system needs memory, addresses do not.
    It is 0 on systems other than Linux.

    Units:
        Bytes.
    """
    if sys.platform != "linux":
        return 0
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    return free_of_cpu() // 2 if unlimited else 0


def _free_of_groups(root: Path) -> Iterator[int]:
    """Yield what the limits of the control groups of this process, and of those around it, leave."""
    lines = _lines(root / "proc/self/cgroup")
    kinds = (
        ("0", "", "memory.max", "memory.current", "inactive_file"),
        ("", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for line in filter(None, lines):
        number, controllers, path = line.split(":", 2)
        for known_number, folder, limit, used, reclaimable in kinds:
            if number != known_number and (not folder or folder not in controllers.split(",")):
                continue
            top = root / "sys/fs/cgroup" / folder
            group = top / path.strip("/")
            for place in (group, *group.parents):
                if not place.is_relative_to(top):
                    break
                most, now = _lines(place / limit), _lines(place / used)
                if most and now and most[0].isdigit() and now[0].isdigit():
                    # pages of files that nobody has used for a while go as soon as memory is asked for
                    yield int(most[0]) - int(now[0]) + _fields(place / "memory.stat").get(reclaimable, 0)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n") if path.is_file() else []


def _fields(path: Path) -> dict[str, int]:
    words = (line.split() for line in _lines(path))
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
