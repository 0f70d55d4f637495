"""Scripts that open process groups and stores themselves."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from accel_testing import stretched
from suite.soak import in_soak

pytest.importorskip("torch")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def python(forking_python: str) -> str:
    """Forks the processes, which import torch."""
    return forking_python


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


def test_a_script_may_call_init_process_group_itself(accel: Run, tmp_path: Path) -> None:
    """S109."""
    (tmp_path / "own.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "assert x.item() == 3 and dist.get_world_size() == 2\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    done = accel("launch", "-n", "2", "--cpu", "own.py")
    assert done.returncode == 0, done.stderr


def test_the_store_of_rank_0_listens_on_the_inherited_socket(accel: Run, tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text(
        "import os\n"
        "from datetime import timedelta\n"
        "from torch.distributed import TCPStore\n"
        "port, rank = int(os.environ['ACCEL_STORE_PORT']), int(os.environ['RANK'])\n"
        "own = {'master_listen_fd': int(os.environ['ACCEL_STORE_FD'])} if rank == 0 else {}\n"
        "store = TCPStore('127.0.0.1', port, 2, rank == 0, timedelta(seconds=30), **own)\n"
        "store.set(f'from-{rank}', str(rank))\n"
        "assert store.get(f'from-{1 - rank}') == str(1 - rank).encode()\n"
        "store.set(f'done-{rank}', '1')\n"
        "store.wait([f'done-{1 - rank}'])\n"
        "import time; time.sleep(0.2 * (rank == 0))\n"
    )
    done = accel("launch", "-n", "2", "--cpu", "store.py")
    assert done.returncode == 0, done.stderr


def test_two_launchers_of_one_machine_that_are_told_no_rank_meet(start: Start, tmp_path: Path) -> None:
    """Neither is told its rank, and the place is of both: the one that comes later serves nobody."""
    (tmp_path / "meets.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\none = torch.ones(1)\n"
        "dist.all_reduce(one)\nprint(dist.get_rank(), int(one))\ndist.destroy_process_group()\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = (
        "--num_machines",
        "2",
        "--main_process_ip",
        "127.0.0.1",
        "--main_process_port",
        port,
        "--join_timeout",
        "40",
    )
    both = [start("launch", "--cpu", "-n", "2", *place, "--rdzv_backend", "c10d", "meets.py") for _ in range(2)]
    said = [each.communicate(timeout=stretched(60)) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert sorted(out for out, _ in said) == ["0 2\n", "1 2\n"]


@pytest.mark.parametrize("backend", ["static", *in_soak("c10d")])
def test_launchers_meet_at_an_address_of_ipv6(start: Start, tmp_path: Path, backend: str) -> None:
    pytest.importorskip("accel")
    (tmp_path / "meets.py").write_text(
        "import torch\nfrom accel import Accelerator\naccelerator = Accelerator(cpu=True)\n"
        "print(accelerator.gather(torch.tensor([accelerator.process_index])).tolist())\n"
    )
    with socket.socket(socket.AF_INET6) as free:
        try:
            free.bind(("::1", 0))
        except OSError:
            pytest.skip("this system has no IPv6")
        port = str(free.getsockname()[1])
    place = ("--num_machines", "2", "--main_process_ip", "::1", "--main_process_port", port, "--join_timeout", "40")
    words = ("launch", "--cpu", "-n", "2", *place, "--rdzv_backend", backend)
    both = [start(*words, "--machine_rank", rank, "meets.py") for rank in "01"]
    said = [each.communicate(timeout=stretched(90)) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert [out for out, _ in said] == ["[0, 1]\n"] * 2
