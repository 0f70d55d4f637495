"""Kubernetes: an Indexed Job with a pod for each machine, and a Service by which they find the first.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/.
"""

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from accel_state.exits import STOPPED

from accel_launch.submission.queue import (
    PLACE,
    Plan,
    Queue,
    Request,
    chosen_gpus,
    label,
    launch_words,
    left_out,
    run_client,
    unknown,
    whole_number,
)

KNOWN = (
    "image",
    "name",
    "namespace",
    "gpus",
    "gpu_resource",
    "cpus",
    "memory",
    "shm",
    "workdir",
    "service_account",
    "pull_policy",
    "retries",
)
GPU_RESOURCE = "nvidia.com/gpu"
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
#: where machines meet, and how long they have to end, where nothing is said; the second as for accel launch
PORT, GRACE_S = 29500, 30
#: what the launcher needs after the processes are gone
LEEWAY_S = 10
# A pod of the job is called NAME-INDEX, and 63 characters are what DNS has.
_LONGEST_NAME = 52
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@final
class Kubernetes(Queue):
    """Writes a manifest for kubectl."""

    default_file = "accel-job.yaml"
    marker = "# written by accel launch --submit kubernetes"
    machines_option = None

    def plan(self, request: Request) -> Plan:
        """The manifest: the Service, then the Job."""
        import yaml

        place = left_out(request.settings, PLACE, "each pod learns it from its index")
        gpus = chosen_gpus(request.settings, "Kubernetes")
        problems = [*place.problems, *gpus.problems, *_wrong(request)]
        name = request.options.get("name") or label(request.name, longest=_LONGEST_NAME)
        # A machine without GPUs starts its processes all the same: on the CPU, and each pod must know how many.
        dropped = [*place.names, *gpus.names, "num_machines", "main_process_port"]
        job = _job(request, name, dropped, problems)
        text = f"{self.marker}; it replaces any file that has this line\n"
        text += yaml.safe_dump_all([_service(request, name), job], sort_keys=False, width=4096)
        return Plan(text, tuple(problems), (*place.notes, *gpus.notes))

    def missing(self, environ: Mapping[str, str]) -> str | None:
        """kubectl, unless it is in PATH."""
        return None if shutil.which("kubectl", path=environ.get("PATH")) else "there is no kubectl in PATH"

    def command(self, path: str) -> str:
        """kubectl apply with the file."""
        return shlex.join(["kubectl", "apply", "-f", path])

    def hand_over(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits the file with kubectl, and tells what it says of it.

        Raises: CannotRun with the words of kubectl if it refuses.
        """
        said = run_client(["kubectl", "apply", "-f", str(path)], environ, cwd=Path.cwd())
        return f"submitted: {'; '.join(said.splitlines())}"


def _metadata(request: Request, name: str) -> dict[str, Any]:
    namespace = request.options.get("namespace")
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": _labels(name)}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "accel", "app.kubernetes.io/instance": name}


def _service(request: Request, name: str) -> dict[str, Any]:
    """A Service without an address of its own, which gives each pod the name NAME-INDEX.NAME."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request, name),
        "spec": {
            "clusterIP": "None",
            # Machines look for the first one while none is ready.
            "publishNotReadyAddresses": True,
            "selector": _labels(name),
            "ports": [{"name": "meeting", "port": _port(request)}],
        },
    }


def _job(request: Request, name: str, dropped: list[str], problems: list[str]) -> dict[str, Any]:
    retries = whole_number(request.options, "retries", problems, least=0) or 0
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, name),
        "spec": {
            "completions": request.machines,
            "parallelism": request.machines,
            "completionMode": "Indexed",
            "backoffLimitPerIndex": retries,
            # One machine that is given up ends the job: the others would wait for it.
            "maxFailedIndexes": 0,
            "podFailurePolicy": {
                "rules": [
                    # It was asked to stop, and has saved: it goes on in a new pod, and that is no failure.
                    {
                        "action": "Ignore",
                        "onExitCodes": {"containerName": "accel", "operator": "In", "values": [STOPPED]},
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {
                "metadata": {"labels": _labels(name)},
                "spec": _pod(request, name, dropped, problems),
            },
        },
    }


def _pod(request: Request, name: str, dropped: list[str], problems: list[str]) -> dict[str, Any]:
    options = request.options
    account, shm = options.get("service_account"), options.get("shm")
    return {
        "restartPolicy": "Never",
        "subdomain": name,
        **({"serviceAccountName": account} if account else {}),
        # As process 1 of its container a script would not be ended by a SIGTERM that it does not take.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": (request.settings.grace_period or GRACE_S) + LEEWAY_S,
        "containers": [
            {
                "name": "accel",
                "image": options.get("image", ""),
                **({"imagePullPolicy": options["pull_policy"]} if "pull_policy" in options else {}),
                **({"workingDir": options["workdir"]} if "workdir" in options else {}),
                "command": ["accel", "launch"],
                # Kubernetes replaces $(NAME) by itself, and $$ stands for $.
                "args": [word.replace("$", "$$") for word in launch_words(request, without=dropped)],
                "env": _variables(request, name),
                "ports": [{"name": "meeting", "containerPort": _port(request)}],
                "resources": _resources(request, problems),
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        # Containers have 64 MB of it, which the workers of one DataLoader fill.
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": shm} if shm else {})}}],
    }


def _variables(request: Request, name: str) -> list[dict[str, Any]]:
    return [
        {"name": "ACCEL_NUM_MACHINES", "value": str(request.machines)},
        {"name": "ACCEL_MACHINE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "ACCEL_MAIN_PROCESS_IP", "value": f"{name}-0.{name}"},
        {"name": "ACCEL_MAIN_PROCESS_PORT", "value": str(_port(request))},
    ]


def _resources(request: Request, problems: list[str]) -> dict[str, Any]:
    """What each machine takes; the cores are as many as its processes use, where that is said."""
    settings, options = request.settings, request.options
    gpus = whole_number(options, "gpus", problems, least=0)
    each = request.processes_per_machine()
    if settings.cpu and gpus:
        problems.append(f"--cpu contradicts submit option gpus={gpus}: give one of the two")
    if not settings.cpu and gpus is None and each is None and "gpus" not in options:
        problems.append(
            "how many GPUs is not said: give --num_processes, which counts those of all machines, or"
            " --submit_options gpus=N for each machine, or --cpu"
        )
    if not settings.cpu and gpus is not None and each is not None and gpus < each:
        problems.append(
            f"submit option gpus={gpus}: --num_processes {settings.num_processes} puts {each} processes on each"
            " machine, and each of them needs a GPU"
        )
    threads = settings.num_cpu_threads_per_process
    cpus = options.get("cpus") or (str((each or 1) * (threads or 1)) if threads or settings.cpu else None)
    requests = {
        **({"cpu": cpus} if cpus else {}),
        **({"memory": options["memory"]} if "memory" in options else {}),
    }
    wanted = gpus if gpus is not None else each
    limits: dict[str, Any] = {"memory": options["memory"]} if "memory" in options else {}
    if wanted and not settings.cpu:
        limits[options.get("gpu_resource", GPU_RESOURCE)] = str(wanted)
    return {**({"requests": requests} if requests else {}), **({"limits": limits} if limits else {})}


def _port(request: Request) -> int:
    return request.settings.main_process_port or PORT


def _wrong(request: Request) -> list[str]:
    options, problems = request.options, request.uneven()
    problems += unknown(options, KNOWN, "those for Kubernetes")
    if request.script is None:
        problems.append("no script was given: accel launch [options] SCRIPT [arguments of the script]")
    if request.settings.module and request.settings.no_python:
        problems.append("--module and --no_python were both given: SCRIPT is either a module or a program")
    if not options.get("image"):
        problems.append(
            "no image was given: --submit_options image=..., a container with accel and the script in it, is needed"
        )
    for name in ("name", "namespace"):
        longest = _LONGEST_NAME if name == "name" else 63
        value = options.get(name)
        if value is not None and (not _NAME.fullmatch(value) or len(value) > longest):
            problems.append(
                f"submit option {name}={value}: expected at most {longest} lower-case letters, digits and dashes"
            )
    for name in ("cpus", "memory", "shm"):
        if name in options and not _QUANTITY.fullmatch(options[name]):
            problems.append(f"submit option {name}={options[name]}: expected an amount such as 8 or 16Gi")
    if options.get("pull_policy", "Always") not in PULL_POLICIES:
        problems.append(
            f"submit option pull_policy={options['pull_policy']}: expected one of {', '.join(PULL_POLICIES)}"
        )
    return problems
