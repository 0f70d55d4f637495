"""`accel launch --submit kubernetes --kind trainjob`: the TrainJob, and what its pods run."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from accel_testing import stretched
from jobs import free_port

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SUBMIT = ("launch", "--submit", "kubernetes", "--submit_options")
SCHEMA = Path(__file__).with_name("trainjob_schema.yaml")
TYPES = {"object": dict, "array": list, "string": str, "integer": int}
TRAINS = """\
import torch
from accel import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(split_batches=True)
torch.manual_seed(0)
model = torch.nn.Linear(2, 1).double()
samples = torch.arange(48.0, dtype=torch.float64).reshape(24, 2) / 48
loader = DataLoader(TensorDataset(samples), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for (batch,) in loader:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
here = model(samples).square().mean().reshape(1)
(result,) = accelerator.gather(here).unique().tolist()
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {result:.12f}")
"""


def wrong(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """What does not fit the schema, or is not in it."""
    if not isinstance(value, TYPES[schema["type"]]):
        yield f"{at}: {value!r} is no {schema['type']}"
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, part in value.items():
            inner = known.get(name, others)
            yield from [f"{at}.{name} is unknown"] if inner is None else wrong(part, inner, f"{at}.{name}")
    elif isinstance(value, list):
        yield from [f"{at} is too long"] if len(value) > schema["maxItems"] else []
        yield from (
            text for number, part in enumerate(value) for text in wrong(part, schema["items"], f"{at}.{number}")
        )
    elif isinstance(value, str):
        fits = re.fullmatch(schema.get("pattern", "(?s).*"), value) and len(value) <= schema.get("maxLength", 1 << 20)
        yield from [] if fits else [f"{at}: {value!r} does not fit"]


def written(folder: Path) -> dict[str, Any]:
    job = yaml.safe_load((folder / "accel-job.yaml").read_text())
    assert isinstance(job, dict)
    return job


@pytest.mark.parametrize(
    ("line", "trainer"),
    [
        (
            ("kind=trainjob,image=me/train,memory=20Gi,namespace=ml", "-n", "16", "--num_machines", "2"),
            {
                "numNodes": 2,
                "resourcesPerNode": {
                    "requests": {"memory": "20Gi"},
                    "limits": {"memory": "20Gi", "nvidia.com/gpu": "8"},
                },
            },
        ),
        (
            ("image=me/train,cpus=4,runtime=ours", "--kind", "trainjob", "--cpu", "-n", "2"),
            {"numNodes": 1, "resourcesPerNode": {"requests": {"cpu": "4"}}},
        ),
    ],
    ids=["two machines", "one machine"],
)
def test_the_trainjob_is_one_that_kubeflow_has(
    accel: Run, tmp_path: Path, line: tuple[str, ...], trainer: dict[str, Any]
) -> None:
    done = accel(*SUBMIT, *line, "--dry_run", "train.py")
    assert done.returncode == 0, done.stderr
    job = written(tmp_path)
    assert list(wrong(job, yaml.safe_load(SCHEMA.read_text()))) == []
    assert trainer.items() <= job["spec"]["trainer"].items()
    assert job["spec"]["runtimeRef"] == {"name": "ours" if "runtime" in line[0] else "torch-distributed"}


def test_options_that_are_of_the_runtime_are_refused(accel: Run) -> None:
    done = accel(*SUBMIT, "kind=trainjob,image=i,retries=0,shm=2Gi", "--cpu", "--dry_run", "train.py")
    for option in ("retries=0", "shm=2Gi"):
        assert f"submit option {option}: a TrainJob has it from its runtime; leave it out" in done.stderr
    done = accel(*SUBMIT, "image=i,runtime=ours", "--cpu", "--dry_run", "train.py")
    assert "submit option runtime=ours: only --kind trainjob has a runtime" in done.stderr


def test_a_kind_that_cannot_be_is_refused(accel: Run) -> None:
    done = accel(*SUBMIT, "kind=job,image=i", "--kind", "trainjob", "--cpu", "--dry_run", "train.py")
    assert "submit option kind=job contradicts --kind trainjob" in done.stderr
    done = accel(*SUBMIT, "image=i", "--kind", "pod", "--cpu", "--dry_run", "train.py")
    assert "submit option kind=pod: " in done.stderr
    done = accel("launch", "--submit", "slurm", "--kind", "trainjob", "--cpu", "--dry_run", "train.py")
    assert "--kind trainjob: slurm has one kind of job; leave --kind out" in done.stderr
    done = accel("launch", "--kind", "trainjob", "--cpu", "train.py")
    assert "--kind needs --submit SCHEDULER" in done.stderr


def as_kubernetes(word: str, environ: Mapping[str, str]) -> str:
    """A word of a command, in which $(NAME) is a variable, if there is one, and $$ a dollar sign."""
    return re.sub(r"\$(\$|\((\w+)\))", lambda found: "$" if found[1] == "$" else environ.get(found[2], found[0]), word)


def pod(folder: Path, environ: Mapping[str, str], rank: int, nodes: int, port: int) -> "subprocess.Popen[str]":
    """A process with the command of the TrainJob, and the variables that the torch runtime sets in its pod."""
    trainer = written(folder)["spec"]["trainer"]
    names = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
    own = dict(zip(names, map(str, (nodes, 1, rank, "127.0.0.1", port)), strict=True))
    words = [as_kubernetes(word, own) for word in trainer["args"]]
    assert trainer["command"] == ["accel", "launch"]
    return subprocess.Popen(
        [sys.executable, "-m", "accel_launch", "launch", *words],
        cwd=folder,
        env={**environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_pods_of_a_trainjob_train_as_one_process(
    accel: Run, silent_environ: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    results = []
    for nodes in (1, 2):
        line = ("kind=trainjob,image=i", "--cpu", "-n", str(nodes), "--num_machines", str(nodes), "--dry_run")
        assert accel(*SUBMIT, *line, "train.py").returncode == 0
        port = free_port()
        pods = [pod(tmp_path, silent_environ, rank, nodes, port) for rank in range(nodes)]
        try:
            told = [each.communicate(timeout=stretched(120)) for each in pods]
        finally:
            for each in pods:
                each.kill()
        assert [each.returncode for each in pods] == [0] * nodes, told
        said = sorted(line for out, _ in told for line in out.splitlines() if line.startswith("rank "))
        results.append([line.partition(": ") for line in said])
    assert [[begin for begin, _, _ in found] for found in results] == [["rank 0 of 1"], ["rank 0 of 2", "rank 1 of 2"]]
    assert len({number for found in results for _, _, number in found}) == 1, results
