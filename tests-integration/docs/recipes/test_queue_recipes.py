"""The jobs under docs/examples/slurm and docs/examples/kubernetes run, with programs that stand for the schedulers."""

import os
import re
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from accel_testing import stretched
from repository import ROOT
from silent_environ import silent

EXAMPLES = ROOT / "docs" / "examples"
BATCH = EXAMPLES / "slurm" / "array.sbatch"
MANIFEST = EXAMPLES / "kubernetes" / "job.yaml"
pytestmark = pytest.mark.timeout(1200)

#: runs what srun is told to run, and stops it after its first epoch
STOPPING = """
"$@" > first & job=$!
until grep -q '^epoch 0' first || ! kill -0 $job; do sleep 0.1; done
kill -USR1 $job
wait $job
"""


@pytest.fixture
def environ(tmp_path: Path, forking_python: str) -> dict[str, str]:
    """An environment with a folder of small programs, `accel` among them, before all others in PATH."""
    (tmp_path / "bin").mkdir()
    own = silent(tmp_path)
    program(tmp_path, "accel", f'exec {shlex.quote(forking_python)} -m accel "$@"')
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    return {**own, "PATH": f"{tmp_path / 'bin'}:{own['PATH']}", "OMP_NUM_THREADS": "1"}


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def submit(folder: Path, environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Runs the task 1 of the array, as sbatch would."""
    task = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "42", "SLURM_CPUS_PER_TASK": "4"}
    command = ["bash", str(BATCH), "--cpu", "-n", "2"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**environ, **task},
        capture_output=True,
        text=True,
        timeout=stretched(500),
        check=False,
    )


def test_a_slurm_task_that_is_stopped_is_queued_again_and_goes_on(tmp_path: Path, environ: dict[str, str]) -> None:
    only = 'while [ "$1" != accel ]; do shift; done\n'
    program(tmp_path, "scontrol", 'echo "$@" >> asked')
    program(tmp_path, "srun", only + STOPPING)
    stopped = submit(tmp_path, environ)
    assert stopped.returncode == 75, stopped.stderr
    assert (tmp_path / "asked").read_text() == "requeue 40_1\n"

    reached = (tmp_path / "first").read_text().count("epoch ")
    program(tmp_path, "srun", only + f'echo "$@" > started; exec "$@" --epochs {reached + 2}')
    done = submit(tmp_path, environ)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "started").read_text() == "accel launch --cpu -n 2 docs/examples/preemptible.py\n"
    assert (tmp_path / "asked").read_text() == "requeue 40_1\n"
    assert "goes on from checkpoint_0" in done.stdout
    assert f"epoch {reached + 1}: loss" in done.stdout
    assert "epoch 0:" not in done.stdout
    assert "with rate 0.003" in done.stdout
    assert (tmp_path / "runs" / "preemptible" / "task-1").is_dir()


def pod(folder: Path, environ: dict[str, str], rank: int, port: int) -> "subprocess.Popen[str]":
    """A process that runs the command of the manifest with its variables, as the pod with this index would."""
    _, _, job = yaml.safe_load_all(MANIFEST.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    places = {"/app": str(EXAMPLES), "/checkpoints": str(folder / "checkpoints")}
    words = list[str](container["args"])
    for inside, outside in places.items():
        words = [word.replace(inside, outside) for word in words]
    values = {"rates-0.rates": "127.0.0.1", "29500": str(port)}
    variables = {each["name"]: values[each["value"]] if "value" in each else str(rank) for each in container["env"]}
    return subprocess.Popen(
        [*container["command"], *words, "--epochs=2"],
        cwd=folder,
        env={**environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_pods_of_the_manifest_train_together(tmp_path: Path, environ: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pods = [pod(tmp_path, environ, rank, port) for rank in range(2)]
    try:
        told = [each.communicate(timeout=stretched(500)) for each in pods]
    finally:
        for each in pods:
            each.kill()
    assert [each.returncode for each in pods] == [0, 0], told
    results = [re.findall(r"result: accuracy .*", out) for out, _ in told]  # `print` speaks once on each machine
    assert len(results[0]) == 1
    assert results[0] == results[1]


def test_the_parts_of_the_manifest_fit_together() -> None:
    service, claim, job = yaml.safe_load_all(MANIFEST.read_text())
    spec: dict[str, Any] = job["spec"]
    template = spec["template"]["spec"]
    (container,) = template["containers"]
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["completions"] == spec["parallelism"] == 2
    assert f"--num_machines={spec['completions']}" in container["args"]
    assert template["subdomain"] == service["metadata"]["name"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["ACCEL_MAIN_PROCESS_IP"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]
    mounted = {each["name"]: each for each in template["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == mounted.keys()
    assert mounted["checkpoints"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_batch_file_is_one_that_bash_reads() -> None:
    assert os.path.exists(ROOT / "docs" / "examples" / "preemptible.py")
    subprocess.run(["bash", "-n", str(BATCH)], check=True)
