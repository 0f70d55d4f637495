"""`accel launch --submit kubernetes`: the manifest, who gets it, and what is refused."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FILE = "accel-job.yaml"
KUBERNETES = ("launch", "--submit", "kubernetes")
FULL = (
    "image=reg.io/me/train:1,name=big,namespace=ml,gpus=8,gpu_resource=amd.com/gpu,cpus=32,memory=200Gi,shm=64Gi,"
    "workdir=/code,service_account=trainer,pull_policy=Always,retries=2"
)


@pytest.fixture
def no_client(tmp_path: Path) -> dict[str, str]:
    """A PATH without kubectl: a real one could reach a real cluster."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin")}


def documents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    service, job = yaml.safe_load_all(path.read_text())
    return service, job


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_there_is_a_pod_for_each_machine_which_knows_its_place(
    accel: Run, no_client: dict[str, str], tmp_path: Path
) -> None:
    line = ("-n", "16", "--num_machines", "2", "--main_process_port", "4000", "--submit_options", "image=me/train")
    done = accel(*KUBERNETES, *line, "My_Train.py", "--lr", "0.1", environ=no_client)
    assert done.returncode == 0, done.stderr
    assert "there is no kubectl in PATH" in done.stderr
    assert "kubectl apply -f accel-job.yaml" in done.stderr
    service, job = documents(tmp_path / FILE)
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    found = container(job)
    variables = {each["name"]: each.get("value", each.get("valueFrom")) for each in found["env"]}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert variables == {
        "ACCEL_MACHINE_RANK": {"fieldRef": {"fieldPath": index}},
        "ACCEL_MAIN_PROCESS_IP": "my-train-0.my-train",
        "ACCEL_MAIN_PROCESS_PORT": "4000",
    }
    assert job["metadata"]["name"] == service["metadata"]["name"] == "my-train"
    assert spec["template"]["spec"]["subdomain"] == "my-train"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    assert found["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    words = ["--config_file", "/dev/null", "--num_processes", "16", "--num_machines", "2"]
    assert found["command"] == ["accel", "launch"]
    assert found["args"] == [*words, "My_Train.py", "--lr", "0.1"]


def test_exit_code_75_and_a_preempted_pod_are_no_failures(
    accel: Run, no_client: dict[str, str], tmp_path: Path
) -> None:
    line = ("--cpu", "--grace_period", "100", "--submit_options", "image=i,retries=3")
    assert accel(*KUBERNETES, *line, "t.py", environ=no_client).returncode == 0
    _, job = documents(tmp_path / FILE)
    spec = job["spec"]
    first, second = spec["podFailurePolicy"]["rules"]
    assert first == {
        "action": "Ignore",
        "onExitCodes": {"containerName": container(job)["name"], "operator": "In", "values": [75]},
    }
    assert second == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (3, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 110


def test_the_pods_launch_with_what_their_manifest_says(
    accel: Run, accel_program: Run, no_client: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text("import os, sys; print(os.environ['ACCEL_MIXED_PRECISION'], sys.argv[1:])")
    line = ("--cpu", "-n", "1", "--mixed_precision", "bf16", "--submit_options", "image=i")
    assert accel(*KUBERNETES, *line, "t.py", "$(HOME) $5", environ=no_client).returncode == 0
    _, job = documents(tmp_path / FILE)
    found = container(job)
    # As Kubernetes reads them: $$ is a dollar sign, which begins no name of a variable.
    words = [word.replace("$$", "$") for word in found["args"]]
    assert "$(" not in "".join(found["args"]).replace("$$", "")
    environ = {each["name"]: each.get("value", "0") for each in found["env"]}
    done = accel_program(*found["command"][1:], *words, environ=environ)
    assert (done.returncode, done.stdout) == (0, "bf16 ['$(HOME) $5']\n"), done.stderr


@pytest.mark.parametrize(
    "line",
    [
        ("-n", "8", "--submit_options", "image=i"),
        ("--cpu", "-n", "4", "--num_cpu_threads_per_process", "2", "--submit_options", "image=i,memory=1Gi"),
        ("-n", "16", "--num_machines", "2", "--submit_options", FULL),
    ],
)
def test_the_manifest_is_one_that_kubernetes_has(
    accel: Run, no_client: dict[str, str], tmp_path: Path, line: tuple[str, ...]
) -> None:
    client = pytest.importorskip("kubernetes.client")
    assert accel(*KUBERNETES, *line, "train.py", environ=no_client).returncode == 0
    api = client.ApiClient()
    for document, kind in zip(documents(tmp_path / FILE), ("V1Service", "V1Job"), strict=True):
        # The models refuse what lacks a field, and drop a field that they do not know.
        model = api._ApiClient__deserialize(document, kind)
        assert api.sanitize_for_serialization(model) == document


def test_every_submit_option_has_its_place(accel: Run, no_client: dict[str, str], tmp_path: Path) -> None:
    line = ("-n", "16", "--num_machines", "2", "--submit_options", FULL)
    assert accel(*KUBERNETES, *line, "train.py", environ=no_client).returncode == 0
    service, job = documents(tmp_path / FILE)
    assert {each["metadata"]["namespace"] for each in (service, job)} == {"ml"}
    assert {each["metadata"]["name"] for each in (service, job)} == {"big"}
    pod, found = job["spec"]["template"]["spec"], container(job)
    assert pod["serviceAccountName"] == "trainer"
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]
    assert found["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert (found["image"], found["workingDir"], found["imagePullPolicy"]) == ("reg.io/me/train:1", "/code", "Always")
    assert found["resources"] == {
        "requests": {"cpu": "32", "memory": "200Gi"},
        "limits": {"memory": "200Gi", "amd.com/gpu": "8"},
    }


def test_kubectl_gets_the_file(accel: Run, no_client: dict[str, str], tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "kubectl"
    fake.write_text(
        '#!/bin/sh\n/bin/cp "$3" seen; echo "$1 $2" > how; echo service/train created\necho job/train created\n'
    )
    fake.chmod(0o755)
    line = ("--cpu", "--submit_options", "image=i")
    done = accel(*KUBERNETES, "--dry_run", *line, "train.py", environ=no_client)
    assert done.stdout == (tmp_path / FILE).read_text()
    assert not (tmp_path / "seen").exists()
    done = accel(*KUBERNETES, *line, "train.py", environ=no_client)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == (tmp_path / FILE).read_text()
    assert (tmp_path / "how").read_text() == "apply -f\n"
    assert done.stdout == "service/train created\njob/train created\n"
    fake.write_text("#!/bin/sh\necho 'error: no cluster' >&2\nexit 1\n")
    done = accel(*KUBERNETES, *line, "train.py", environ=no_client)
    assert done.returncode == 2
    assert "error: no cluster\naccel: error: kubectl apply -f accel-job.yaml failed with exit code 1" in done.stderr


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_written(
    accel: Run, no_client: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text("kind: Job\n")
    options = "gpus=x,name=Big_One,memory=much,pull_policy=often,retries=-1,imgae=i"
    line = ("-n", "3", "--num_machines", "2", "--machine_rank", "1", "--gpu_ids", "0", "--submit_options", options)
    done = accel(*KUBERNETES, *line, environ=no_client)
    assert (done.returncode, done.stdout) == (2, "")
    for words in (
        "--machine_rank 1: each pod learns it from Kubernetes",
        "--gpu_ids 0: Kubernetes gives the job its GPUs",
        "--num_processes 3 on 2 machines",
        "'imgae' is none of those for kubernetes; did you mean 'image'?",
        "no script was given",
        "no image was given",
        "name=Big_One: expected at most 52",
        "memory=much: expected an amount",
        "pull_policy=often",
        "retries=-1: expected a whole number, or 0",
        "gpus=x: expected a whole number",
        "is there already, and accel launch has not written it",
    ):
        assert words in done.stderr
    assert (tmp_path / FILE).read_text() == "kind: Job\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("--submit_options", "image=i"), "how many GPUs is not said"),
        (("--cpu", "--submit_options", "image=i,gpus=1"), "--cpu contradicts submit option gpus=1"),
        (("-n", "8", "--submit_options", "image=i,gpus=4"), "puts 8 processes on each"),
    ],
)
def test_gpus_and_processes_fit(accel: Run, no_client: dict[str, str], line: tuple[str, ...], words: str) -> None:
    assert words in accel(*KUBERNETES, *line, "train.py", environ=no_client).stderr
