"""Counts the accelerators of this machine without torch."""

import re
from collections.abc import Mapping
from pathlib import Path

DEV = Path("/dev")
_NVIDIA_NODE = re.compile(r"nvidia[0-9]+")


def count_accelerators(environ: Mapping[str, str], dev: Path = DEV) -> int:
    """How many NVIDIA GPUs a process started with this environment would see.

    CUDA_VISIBLE_DEVICES, where set, is believed; otherwise the device nodes are counted.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _count_visible(visible)
    try:
        return sum(1 for node in dev.iterdir() if _NVIDIA_NODE.fullmatch(node.name))
    except OSError:
        return 0


def _count_visible(visible: str) -> int:
    """CUDA reads entries up to the first one that names no device, such as -1."""
    count = 0
    for entry in visible.split(","):
        word = entry.strip()
        if not word or word.startswith("-") or word == "NoDevFiles":
            break
        count += 1
    return count
