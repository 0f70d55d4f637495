"""Finds the accelerators of this machine without torch."""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

DEV = Path("/dev")
_NVIDIA_NODE = re.compile(r"nvidia[0-9]+")


def visible_devices(environ: Mapping[str, str], dev: Path = DEV) -> list[str]:
    """The names of the NVIDIA GPUs that a process started with this environment would see.

    CUDA_VISIBLE_DEVICES, if set, is believed up to its first entry that names no device, such as -1, as CUDA does;
    otherwise the device nodes are counted.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return list(takewhile(lambda name: name and not name.startswith("-") and name != "NoDevFiles", names))
    try:
        nodes = [node for node in dev.iterdir() if _NVIDIA_NODE.fullmatch(node.name)]
    except OSError:
        return []
    return [str(number) for number in range(len(nodes))]
