"""Whatever ends a launcher, nothing of its job is left: ranks, their loader workers, and the port at which they met."""

import errno
import random
import signal
import socket
import sys
import time
from pathlib import Path

import jobs
import pytest
from accel_testing import stretched
from suite.soak import Cases

SCRIPT = """\
import os, sys, time
from pathlib import Path
import torch
from accel import Accelerator
from torch.utils.data import DataLoader

if __name__ == "__main__":
    accelerator = Accelerator()
    data = torch.arange(4096.0)
    loader = accelerator.prepare(DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True))
    for step, batch in enumerate(loader):
        accelerator.reduce(batch)
        if step == 1:
            Path(sys.argv[1], f"port-{os.environ['RANK']}").write_text(os.environ["ACCEL_STORE_PORT"])
        time.sleep(0.01)
"""


def listens(port: int) -> bool:
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) != errno.ECONNREFUSED


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_nothing_is_left_of_a_job_whose_launcher_is_ended(tmp_path: Path, cases: Cases) -> None:
    """T36: 1 end in the suite, 50 in a soak; two ranks with two loader workers each."""
    script = tmp_path / "loads.py"
    script.write_text(SCRIPT)
    for number in cases(1, 50):
        chance = random.Random(number)
        folder = tmp_path / str(number)
        folder.mkdir()
        how = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[number % 3]
        job = jobs.start(script, folder)
        ports = [folder / f"port-{rank}" for rank in (0, 1)]
        until = time.monotonic() + stretched(60)
        while not all(port.exists() and port.read_text() for port in ports):
            assert job.process.poll() is None, job.end().err
            assert time.monotonic() < until
            time.sleep(0.01)
        assert len(jobs.marked(job.mark)) >= 5, "the launcher, its ranks and their workers"
        time.sleep(chance.uniform(0, 0.3))
        job.process.send_signal(how)
        done = job.end()
        assert done.code == (-how if how == signal.SIGKILL else 128 + how), done.err
        until = time.monotonic() + jobs.SOON_S
        while done.left() or listens(int(ports[0].read_text())):
            assert time.monotonic() < until, (how, done.left())
            time.sleep(0.01)
