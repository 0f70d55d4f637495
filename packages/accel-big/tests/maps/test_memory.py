"""What devices may give."""

import sys
from pathlib import Path

import pytest
from accel_big import get_max_memory
from accel_big.maps.memory import free_of_cpu
from accel_state.errors import CannotRun

MIB = 2**20


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8192 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_sizes_are_read_and_devices_sorted() -> None:
    """S141: also those of another machine."""
    memory = get_max_memory({"disk": "1GB", "cpu": "2 KiB", 1: 30, 0: 0})
    assert list(memory.items()) == [(0, 0), (1, 30), ("cpu", 2048), ("disk", 10**9)]


def test_all_wrong_sizes_and_devices_are_told() -> None:
    with pytest.raises(CannotRun) as caught:
        get_max_memory({"cpu": "-1GB", "disk": "much", "gpu": 5, 128: 5})
    told = "\n".join(caught.value.reasons)
    assert len(caught.value.reasons) == 4
    for part in ("'cpu': size '-1GB'", "'disk': size 'much'", "'gpu' is not a device", "128 is not a device"):
        assert part in told


@pytest.mark.skipif(sys.platform != "linux", reason="reads files of Linux")
def test_free_memory_respects_limits_of_containers(tmp_path: Path) -> None:
    """S141: pages of files that nobody uses count as free."""
    assert free_of_cpu(machine(tmp_path / "plain", {})) == 8 * MIB
    group = "sys/fs/cgroup/jobs/one/"
    unified = {"proc/self/cgroup": "0::/jobs/one\n", f"{group}memory.max": "max\n", f"{group}memory.current": "5\n"}
    assert free_of_cpu(machine(tmp_path / "unlimited", unified)) == 8 * MIB
    outer = "sys/fs/cgroup/jobs/"
    unified |= {
        f"{outer}memory.max": f"{6 * MIB}\n",
        f"{outer}memory.current": f"{5 * MIB}\n",
        f"{outer}memory.stat": f"anon 7\ninactive_file {3 * MIB}\nactive_file 9\n",
    }
    assert free_of_cpu(machine(tmp_path / "outer", unified)) == 4 * MIB
    old = "sys/fs/cgroup/memory/job/"
    files = {
        "proc/self/cgroup": "3:cpu:/job\n4:memory:/job\n",
        f"{old}memory.limit_in_bytes": f"{3 * MIB}\n",
        f"{old}memory.usage_in_bytes": f"{MIB}\n",
    }
    assert free_of_cpu(machine(tmp_path / "old", files)) == 2 * MIB


def test_this_machine_tells_its_memory() -> None:
    assert get_max_memory()["cpu"] > 0
