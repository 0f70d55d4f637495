"""Find the accelerators of this machine without torch."""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

SYSTEM = Path("/")
#: what both CUDA and HIP obey, and what only AMD's libraries do
_MASK, _AMD_MASKS = "CUDA_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: seconds that NVIDIA's tool may take
_TOOL_S = 10


def visible_devices(environ: Mapping[str, str], system: Path = SYSTEM) -> list[str]:
    """Return the names of the GPUs of NVIDIA or AMD that a process with this environment would see.

    CUDA_VISIBLE_DEVICES, if set, is taken up to its first entry that names no device, such as -1, as CUDA does. So are
    AMD's own variables without a GPU of NVIDIA. Otherwise the devices of the driver are counted.

    Args:
        environ: Environment of the process.
        system: Folder that has the files of the system.
    """
    count = _nvidia_nodes(system) or _in_wsl(system)
    for mask in (_MASK, *(() if count else _AMD_MASKS)):
        if mask in environ:
            names = [name.strip() for name in environ[mask].split(",")]
            return list(takewhile(lambda name: name and not name.startswith("-") and name != "NoDevFiles", names))
    return [str(number) for number in range(count or _amd_nodes(system))]


def _nvidia_nodes(system: Path) -> int:
    return sum(node.name.removeprefix("nvidia").isdecimal() for node in (system / "dev").glob("nvidia*"))


def _amd_nodes(system: Path) -> int:
    """Count the nodes of AMD's compute driver that are GPUs. Processors have the number zero."""
    count = 0
    for gpu_id in (system / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"):
        with suppress(OSError):  # of a container that may not use it
            count += gpu_id.read_text().strip() not in ("", "0")
    return count


def _in_wsl(system: Path) -> int:
    """Count the GPUs that Windows lends to Linux by NVIDIA's tool, since they share a device node."""
    tool = system / "usr/lib/wsl/lib/nvidia-smi"
    if not (system / "dev/dxg").exists() or not tool.exists():
        return 0
    try:
        told = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=_TOOL_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in told.splitlines())
