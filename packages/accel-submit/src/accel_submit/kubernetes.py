"""Write jobs for Kubernetes: an Indexed Job with a Service to find its first pod, or a TrainJob of Kubeflow Trainer.

Source:
    https://kubernetes.io/docs/concepts/workloads/controllers/job/
    https://www.kubeflow.org/docs/components/trainer/
"""

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, final

import click
from accel_launch.cli.option_types import NUMBER
from accel_state.exit_codes import STOPPED

from accel_submit.scheduler import TEXT, Scheduler, SubmitRequest, Types, matching, render

_DNS = r"[a-z]([a-z0-9-]*[a-z0-9])?"
_AMOUNT = matching(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?", "an amount such as 8 or 16Gi")
#: the port where machines meet, and the seconds they have to end, as for accel launch; and what the launcher needs then
PORT, GRACE_S, LEEWAY_S = 29500, 30, 10

# The Service has no address of its own: it gives each pod the name NAME-INDEX.NAME, also before one is ready, since
# machines look for the first. One machine that is given up ends the job, as the others would wait for it. One that was
# asked to stop, and has saved, goes on in a new pod, and that is no failure. As process 1 of its container a script
# would not be ended by a SIGTERM that it does not take. Of /dev/shm containers have 64 MB, which loader workers fill.
TEMPLATE = f"""\
# $marker; it replaces any file that has this line
apiVersion: v1
kind: Service
metadata: $metadata
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: $labels
  ports: [{{name: meeting, port: $port}}]
---
apiVersion: batch/v1
kind: Job
metadata: $metadata
spec:
  completions: $machines
  parallelism: $machines
  completionMode: Indexed
  backoffLimitPerIndex: $retries
  maxFailedIndexes: 0
  podFailurePolicy:
    rules:
    - {{action: Ignore, onExitCodes: {{containerName: accel, operator: In, values: [{STOPPED}]}}}}
    - {{action: Ignore, onPodConditions: [{{type: DisruptionTarget, status: "True"}}]}}
  template:
    metadata: {{labels: $labels}}
    spec:
      restartPolicy: Never
      subdomain: $name
      serviceAccountName: $service_account
      shareProcessNamespace: true
      terminationGracePeriodSeconds: $grace_s
      containers:
      - name: accel
        image: $image
        imagePullPolicy: $pull_policy
        workingDir: $workdir
        command: [accel, launch]
        args: $words
        env:
        - {{name: ACCEL_MACHINE_RANK, valueFrom: {{fieldRef: {{fieldPath: $index}}}}}}
        - {{name: ACCEL_MAIN_PROCESS_IP, value: $first_pod}}
        - {{name: ACCEL_MAIN_PROCESS_PORT, value: "$port"}}
        ports: [{{name: meeting, containerPort: $port}}]
        resources: $resources
        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: $shm}}]
"""

# The runtime puts its variables behind those of a TrainJob, so that only words of the command may name them.
TRAIN_JOB = """\
# $marker; it replaces any file that has this line
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: $metadata
spec:
  runtimeRef: {name: $runtime}
  trainer:
    image: $image
    command: [accel, launch]
    args: $words
    numNodes: $machines
    resourcesPerNode: $resources
"""
#: the options that are fields of a Job; for a TrainJob, its runtime has them
_OF_A_JOB = {"shm", "workdir", "service_account", "pull_policy", "retries"}


@final
class KubernetesScheduler(Scheduler):
    """A scheduler that writes a manifest for kubectl."""

    name = "kubernetes"
    default_file = "accel-job.yaml"
    client = ("kubectl", "apply", "-f")
    types: ClassVar[Types] = {
        "kind": click.Choice(("job", "trainjob")),
        "runtime": TEXT,
        "image": TEXT,
        # a pod of the job is called NAME-INDEX, and 63 characters are what DNS has
        "name": matching(rf"(?=.{{1,52}}$){_DNS}", "at most 52 lower-case letters, digits and dashes"),
        "namespace": matching(rf"(?=.{{1,63}}$){_DNS}", "at most 63 lower-case letters, digits and dashes"),
        "gpus": NUMBER,
        "gpu_resource": TEXT,
        **dict.fromkeys(("cpus", "memory", "shm"), _AMOUNT),
        "workdir": TEXT,
        "service_account": TEXT,
        "pull_policy": click.Choice(("Always", "IfNotPresent", "Never")),
        "retries": NUMBER,
    }
    gpus_options = ("gpus",)
    ignores: ClassVar = {
        "machine_rank": "each pod learns it from Kubernetes",
        "main_process_ip": "each pod learns it from Kubernetes",
        "gpu_ids": "Kubernetes gives the job its GPUs, numbered from 0; ask for a number of them",
    }
    script_is_here = False

    def write_job(self, request: SubmitRequest) -> str:
        """Return the manifest: the Service and the Job, or the TrainJob."""
        settings, options, problems = request.settings, request.options, request.problems
        if "image" not in options:
            problems.append("no image was given: --submit_options image=... with accel and the script in it is needed")
        if settings.cpu and options.get("gpus"):
            problems.append(f"--cpu contradicts submit option gpus={options['gpus']}: give one of the two")
        trains = options.get("kind") == "trainjob"
        wrong = sorted(options.keys() & (_OF_A_JOB if trains else {"runtime"}))
        why = "a TrainJob has it from its runtime; leave it out" if trains else "only --kind trainjob has a runtime"
        problems += [f"submit option {name}={options[name]}: {why}" for name in wrong]
        name = options.get("name") or _label(request.name)
        place = []
        if trains and request.machines > 1:
            port = settings.main_process_port or "$(PET_MASTER_PORT)"
            place = ["--machine_rank", "$(PET_NODE_RANK)", "--main_process_ip", "$(PET_MASTER_ADDR)"]
            place += ["--main_process_port", str(port)]
        labels = {"app.kubernetes.io/managed-by": "accel", "app.kubernetes.io/instance": name}
        values = {
            "metadata": _present({"name": name, "namespace": options.get("namespace"), "labels": labels}),
            "labels": labels,
            "name": name,
            "port": settings.main_process_port or PORT,
            "machines": request.machines,
            "retries": options.get("retries", 0),
            "service_account": options.get("service_account"),
            "grace_s": (settings.grace_period or GRACE_S) + LEEWAY_S,
            "image": options.get("image", ""),
            "pull_policy": options.get("pull_policy"),
            "workdir": options.get("workdir"),
            # Kubernetes replaces $(NAME) by itself, and $$ stands for $.
            "words": [*place, *(word.replace("$", "$$") for word in request.words("main_process_port"))],
            "runtime": options.get("runtime", "torch-distributed"),
            "index": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
            "first_pod": f"{name}-0.{name}",
            "resources": _resources(request),
            "shm": _present({"medium": "Memory", "sizeLimit": options.get("shm")}),
        }
        # JSON is YAML: a value in it cannot end its line or its quotes
        said = {key: json.dumps(value) if value is not None else None for key, value in values.items()}
        return render(TRAIN_JOB if trains else TEMPLATE, {**said, "marker": self.marker})


def _label(name: str) -> str:
    """Convert a name to lower-case letters, digits and dashes, with a letter first, as DNS has them."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"job-{plain}")[:52].rstrip("-")


def _resources(request: SubmitRequest) -> dict[str, Any]:
    """Return the resources of each machine, with the cores that its processes use if the settings say so."""
    options = request.options
    gpus = 0 if request.settings.cpu else options.get("gpus", request.processes_per_machine)
    memory, gpu_resource = options.get("memory"), options.get("gpu_resource", "nvidia.com/gpu")
    requests = _present({"cpu": options.get("cpus") or request.cores, "memory": memory})
    limits = _present({"memory": memory, gpu_resource: str(gpus or "")})
    return _present({"requests": requests, "limits": limits})


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value}
