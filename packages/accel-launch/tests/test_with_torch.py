"""Scripts that open process groups and stores themselves."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_s109_a_script_may_call_init_process_group_itself(accel: Run, tmp_path: Path) -> None:
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
