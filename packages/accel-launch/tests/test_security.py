"""What others on this machine or network can reach, and what a file of settings can do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Every process looks at all listening sockets that it, its launcher or the other process hold.
LISTENERS = """\
import glob, os, socket, sys
import torch, torch.distributed as dist
if sys.argv[1] == "accel":
    from accel import Accelerator
    accelerator = Accelerator(cpu=True)
    accelerator.gather(torch.ones(2))
else:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
held = set()
for pid in (os.getppid(), os.getpid()):
    for entry in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            held.add(os.readlink(entry))
        except OSError:
            pass
found = 0
for version in ("tcp", "tcp6", "udp", "udp6"):
    for line in open(f"/proc/net/{version}").readlines()[1:]:
        words = line.split()
        listens = words[3] == "0A" if version.startswith("tcp") else True
        if listens and f"socket:[{words[9]}]" in held:
            found += 1
            address, _, port = words[1].rpartition(":")
            # the store that torch opens by itself for scripts of their own has no address to be told
            if sys.argv[1] == "accel" or int(port, 16) != int(os.environ["MASTER_PORT"]):
                print("LISTENS", version, address)
print("FOUND", found)
dist.barrier()
"""
# as the kernel writes 127.0.0.1, ::1 and the IPv4 address within IPv6
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["accel", "torch"])
def test_nothing_listens_where_another_machine_could_reach_it(accel_program: Run, tmp_path: Path, kind: str) -> None:
    """A5. With the environment of a cluster, which names interfaces for other jobs."""
    pytest.importorskip("torch")
    (tmp_path / "look.py").write_text(LISTENERS)
    done = accel_program("launch", "-n", "2", "--cpu", "look.py", kind, environ={"GLOO_SOCKET_IFNAME": "eth0"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(int(line.split()[1]) for line in lines if line.startswith("FOUND")) > 0, "it sees what there is"
    where = {line.split()[2] for line in lines if line.startswith("LISTENS")}
    assert where <= LOOPBACK


TAGS = [
    "!!python/object/apply:os.system ['touch owned']",
    "num_processes: !!python/object/apply:os.system ['touch owned']",
    "!!python/object/new:subprocess.Popen [['touch', 'owned']]",
    "num_processes: !!python/name:os.system",
    "num_processes: !!python/module:owned",
    'num_processes: !!python/object/apply:builtins.exec [\'open("owned", "w")\']',
]


@pytest.mark.parametrize("content", TAGS)
def test_a_config_file_is_never_executed(accel: Run, tmp_path: Path, content: str) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "owned.py").write_text("open('owned', 'w')")
    (tmp_path / "run.py").write_text("open('started', 'w')")
    (tmp_path / "mine.yaml").write_text(content + "\n")
    done = accel("launch", "--config_file", "mine.yaml", "run.py")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "mine.yaml" in done.stderr
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("option", ["--log_dir", "--gpu_ids", "--main_process_ip", "SCRIPT"])
def test_words_of_a_command_line_reach_no_shell(accel_program: Run, tmp_path: Path, option: str) -> None:
    value = "$(touch owned)`touch owned`2; touch owned; a|touch owned"
    (tmp_path / "run.py").write_text("import sys; print(sys.argv[1:])")
    line = ["run.py", value] if option == "SCRIPT" else [option, value, "run.py"]
    accel_program("launch", "-n", "2", "--cpu", *line)
    assert not (tmp_path / "owned").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other rules")
def test_a_config_that_anybody_may_write_starts_nothing(accel: Run, accel_program: Run, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "run.py").write_text("open('started', 'w')")
    file = tmp_path / "no-config" / "default_config.yaml"
    file.parent.mkdir()
    file.write_text("num_processes: 1\n")
    os.chmod(file, 0o666)
    done = accel("launch", "run.py")
    assert done.returncode == 2
    assert "every user of this machine may write to it" in done.stderr
    assert not (tmp_path / "started").exists()
    os.chmod(file, 0o600)
    assert accel_program("launch", "run.py").returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other rules")
def test_what_is_kept_aside_while_a_job_runs_is_for_its_user_alone(accel_program: Run, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import os; folder = os.environ['ACCEL_FLIGHT_RECORDER']; print(oct(os.stat(folder).st_mode & 0o777), folder)"
    )
    modes = {line.split()[0] for line in accel_program("launch", "-n", "2", "--cpu", "run.py").stdout.splitlines()}
    assert modes == {"0o700"}
