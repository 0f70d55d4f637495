"""T13: processes that import torch, of which one fails, as a user sees it."""

import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

WAITS = "\nimport time; time.sleep(60)\n"
FORK = "for batch in DataLoader(Bad(), num_workers=1, multiprocessing_context='fork'):\n    pass\n"
LOADER = f"""\
import os, signal
import torch
from torch.utils.data import DataLoader, Dataset
class Bad(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2 and os.environ['RANK'] == '1':
            ACT
        return torch.zeros(1)
{FORK}{WAITS}"""

# a failure: the script, the line that is at fault, and what is said of it
FAILURES = {
    "loader worker raises": (
        LOADER.replace("ACT", "raise LookupError('bad sample')"),
        *("seeded.py:9", "LookupError: bad sample"),
    ),
    "loader worker is killed": (
        LOADER.replace("ACT", "__import__('time').sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"),
        *("seeded.py:11", "Error: "),
    ),
}


@pytest.fixture
def python(forking_python: str) -> str:
    """Forks the processes, which import torch."""
    return forking_python


@pytest.fixture
def accel(accel_program: Run) -> Run:
    """Runs `accel` as a program of its own, since it starts jobs here."""
    return accel_program


def launched(
    accel: Run, folder: Path, script: str, *options: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    (folder / "seeded.py").write_text(script)
    return accel("launch", "-n", "2", "--cpu", *options, "seeded.py", environ=variables)


def report(done: "subprocess.CompletedProcess[str]") -> str:
    """What the launcher says at the end of a failed job."""
    return done.stderr[done.stderr.rindex("accel: rank ") :]


@pytest.mark.parametrize(("script", "where", "words"), FAILURES.values(), ids=FAILURES)
def test_a_failure_of_a_loader_worker_is_told_with_its_line(
    accel: Run, tmp_path: Path, script: str, where: str, words: str
) -> None:
    done = launched(accel, tmp_path, script)
    assert done.returncode == 1, done.stderr
    block = report(done)
    assert block.startswith("accel: rank 1 of 2 ")
    assert words in block
    assert where in block
    assert "/accel_launch/" not in done.stderr


def test_a_killed_one_is_found_by_its_last_exchange(accel: Run, tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "from accel import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "accelerator.wait_for_everyone()\n"
        "os.kill(os.getpid(), signal.SIGKILL) if accelerator.process_index else signal.pause()\n"
    )
    block = report(launched(accel, tmp_path, script))
    # the other rank may not have left it yet, and is told in a line of its own
    found = re.search(r"^  its last exchange was (.+) at (.+) \(exchange (\d+), (\d+) s ago\)$", block, re.M)
    assert found is not None, block
    assert found[2].endswith("seeded.py:4")
    assert int(found[4]) < 60


IN_EXCHANGE = """\
import signal, time
from accel import Accelerator
accelerator = Accelerator(cpu=True)
def stop(*received):
    raise ValueError("no more")
signal.signal(signal.SIGALRM, stop)
accelerator.wait_for_everyone()
if accelerator.process_index == 0:
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("script", "exchange"),
    [
        ("signal.alarm(1)\naccelerator.wait_for_everyone()", "\n  it was in wait_for_everyone at .*seeded.py:11\n"),
        ("raise ValueError('no more')", None),
    ],
)
def test_the_exchange_in_which_a_process_fails_is_told(
    accel: Run, tmp_path: Path, script: str, exchange: str | None
) -> None:
    block = report(launched(accel, tmp_path, IN_EXCHANGE + script))
    assert "ValueError: no more\n" in block
    assert re.search(exchange, block) if exchange is not None else "it was in" not in block, block


def test_the_one_that_raised_is_blamed_though_the_other_loses_it(accel: Run, tmp_path: Path) -> None:
    """Rank 0 notices first, because rank 1 closes its connections before it says why."""
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(4)\n"
        "dist.all_reduce(x)\n"
        "if dist.get_rank() == 1:\n"
        "    try:\n"
        "        raise ValueError('the real cause')\n"
        "    finally:\n"
        "        dist.destroy_process_group()\n"
        "while True:\n"
        "    dist.all_reduce(x)\n"
    )
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda _: launched(accel, tmp_path, script), range(4)):
            assert done.returncode == 1
            assert report(done).startswith("accel: rank 1 of 2 "), done.stderr
            assert "ValueError: the real cause\n" in report(done)


def test_a_failure_in_accel_has_the_users_line_and_the_whole_message(accel: Run, tmp_path: Path) -> None:
    script = (
        "import torch\nfrom accel import Accelerator\naccelerator = Accelerator(cpu=True)\n"
        "accelerator.gather(torch.ones(1, 2 + accelerator.process_index))\n"
    )
    block = report(launched(accel, tmp_path, script))
    assert re.search(r"\n  at \S*seeded\.py:4 in <module>", block), block
    assert re.search(r"rank 1 at \S*seeded\.py:4: data float32\[1, 3\]\n", block), block


WITHOUT_LIBUV = """\
import torch.distributed as dist
import torch._C._distributed_c10d as native
class Refuses(dist.TCPStore):
    def __init__(self, *args, use_libuv=True, **keywords):
        if use_libuv:
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
        super().__init__(*args, use_libuv=False, **keywords)
dist.TCPStore = native.TCPStore = Refuses
from accel import Accelerator
accelerator = Accelerator(cpu=True)
print(accelerator.gather(accelerator.process_index + dist.torch.ones(1)).tolist())
"""


def test_two_processes_meet_though_torch_has_no_libuv(accel: Run, tmp_path: Path) -> None:
    """T39."""
    done = launched(accel, tmp_path, WITHOUT_LIBUV)
    assert (done.returncode, done.stdout) == (0, "[1.0, 2.0]\n" * 2), done.stderr


def test_processes_on_the_cpu_share_its_cores(accel: Run, tmp_path: Path) -> None:
    """T16."""
    script = "import os, torch\nprint(os.environ['WORLD_SIZE'], torch.get_num_threads(), len(os.sched_getaffinity(0)))"
    done = launched(accel, tmp_path, script)
    lines = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert [(world, threads) for world, threads, _ in lines] == [(2, max(1, cores // 2)) for _, _, cores in lines]
    assert len(lines) == 2
