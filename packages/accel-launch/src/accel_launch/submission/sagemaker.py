"""Amazon SageMaker: a file with the arguments of its PyTorch estimator.

Source: https://sagemaker.readthedocs.io/en/v2/frameworks/pytorch/sagemaker.pytorch.html.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from accel_launch.script_check import script_problem
from accel_launch.settings import LaunchSettings
from accel_launch.submission.queue import PLACE, Plan, Queue, Request, chosen_gpus, left_out, unknown
from accel_launch.submission.sagemaker_options import KNOWN, SESSION, table, typed

#: what torchrun, which SageMaker starts on each machine, does or says in place of accel launch
_TORCHRUNS = (
    *PLACE,
    "main_process_port",
    "rdzv_backend",
    "join_timeout",
    "log_dir",
    "tee",
    "grace_period",
    "max_restarts",
    "enable_cpu_affinity",
    "explain",
)
# The kinds for which the client takes torch_distributed: with GPUs or Trainium.
_GPU_INSTANCE = re.compile(r"ml[._](p|g|trn)[a-z0-9-]*\..*|local_gpu")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")


@final
class SageMaker(Queue):
    """Writes the arguments of an estimator as JSON, and submits it with the `sagemaker` client, version 2 or 3."""

    default_file = "accel-sagemaker.json"
    marker = '"written_by": "accel launch --submit sagemaker"'
    machines_option = "instance_count"

    def plan(self, request: Request) -> Plan:
        """The arguments that settings, submit options and the script's arguments come to."""
        settings = request.settings
        place = left_out(settings, _TORCHRUNS, "SageMaker starts the processes with torchrun")
        gpus = chosen_gpus(settings, "SageMaker")
        problems = [*place.problems, *gpus.problems, *_wrong(request)]
        estimator = self._estimator(request, problems)
        session = {name: request.options[name] for name in SESSION if name in request.options}
        inputs = table(request.options, "inputs_file", request.cwd, problems)
        content = {
            "written_by": "accel launch --submit sagemaker",
            "estimator": estimator,
            **({"session": session} if session else {}),
            **({"inputs": inputs} if inputs else {}),
        }
        return Plan(json.dumps(content, indent=2) + "\n", tuple(problems), (*place.notes, *gpus.notes))

    def missing(self, environ: Mapping[str, str]) -> str | None:
        """The client, unless this interpreter has it."""
        return None if find_spec("sagemaker") else "the client is not installed (pip install sagemaker)"

    def command(self, path: str) -> str:
        """The same command line; the file is for reading, and for other tools."""
        return "the same command once more"

    def hand_over(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits what the file says, and tells the name of the job.

        Raises: CannotRun with the words of the client if it refuses.
        """
        from accel_launch.submission.sagemaker_client import start

        return f"submitted as training job {start(json.loads(path.read_text(encoding='utf-8')))}"

    def _estimator(self, request: Request, problems: list[str]) -> dict[str, Any]:
        given = typed(request.options, problems)
        script = request.cwd / (request.script or "")
        folder = request.cwd / str(given["source_dir"]) if "source_dir" in given else script.parent
        if not script.is_relative_to(folder):
            problems.append(f"submit option source_dir={given['source_dir']}: the script {request.script} is not in it")
            folder = script.parent
        metrics = table(request.options, "metrics_file", request.cwd, problems)
        environment = _environment(request.settings)
        return {
            "entry_point": str(script.relative_to(folder)),
            "source_dir": str(folder),
            "hyperparameters": _hyperparameters(request.arguments, problems),
            **({"environment": environment} if environment else {}),
            # One process on one machine needs no torchrun, and SageMaker has none for machines without GPUs.
            **(
                {"distribution": {"torch_distributed": {"enabled": True}}}
                if _GPU_INSTANCE.fullmatch(str(given.get("instance_type", "")))
                else {}
            ),
            **(
                {"metric_definitions": [{"Name": name, "Regex": regex} for name, regex in metrics.items()]}
                if metrics
                else {}
            ),
            **{name: value for name, value in given.items() if name != "source_dir"},
            "instance_count": request.machines,
        }


def _environment(settings: LaunchSettings) -> dict[str, str]:
    """The variables by which each process learns what accel launch would have told it."""
    variables = {}
    if settings.said("cpu"):
        variables["ACCEL_USE_CPU"] = "1" if settings.cpu else "0"
    if settings.mixed_precision is not None:
        variables["ACCEL_MIXED_PRECISION"] = settings.mixed_precision
    if settings.gradient_accumulation_steps is not None:
        variables["ACCEL_GRADIENT_ACCUMULATION_STEPS"] = str(settings.gradient_accumulation_steps)
    if settings.num_cpu_threads_per_process is not None:
        variables["OMP_NUM_THREADS"] = str(settings.num_cpu_threads_per_process)
    return variables


def _hyperparameters(arguments: Sequence[str], problems: list[str]) -> dict[str, str]:
    """The script's arguments by name: SageMaker gives them to the script as `--name value`."""
    values: dict[str, str] = {}
    odd: list[str] = []
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        name, equals, value = word.partition("=")
        if not _OPTION.fullmatch(name):
            odd.append(f"{word!r} belongs to no name")
            continue
        if not equals:
            if position == len(arguments) or _OPTION.fullmatch(arguments[position].partition("=")[0]):
                odd.append(f"{name} has no value")
                continue
            value = arguments[position]
            position += 1
        if values.setdefault(name.lstrip("-"), value) != value:
            odd.append(f"{name} is given twice")
    if odd:
        problems.append(
            f"arguments of the script: SageMaker gives each as --name value, and {'; '.join(odd)}; change the script so"
            " that each of them is a name with one value"
        )
    return values


def _wrong(request: Request) -> list[str]:
    settings, options = request.settings, request.options
    problems = unknown(options, KNOWN, "those for SageMaker")
    missing = [name for name in ("role", "instance_type") if not options.get(name)]
    if not options.get("image_uri"):
        missing += [name for name in ("framework_version", "py_version") if not options.get(name)]
    if missing:
        instead = "" if options.get("image_uri") else "; image_uri takes the place of framework_version and py_version"
        problems.append(f"--submit_options lacks {', '.join(missing)}, which SageMaker needs{instead}")
    machines, kind = request.machines, options.get("instance_type")
    if kind and machines > 1 and not _GPU_INSTANCE.fullmatch(kind):
        problems.append(
            f"{machines} machines of type {kind}: SageMaker connects machines with GPUs only; ask for one machine, or"
            " for a type such as ml.g5.xlarge"
        )
    if settings.num_processes is not None and (settings.num_processes != 1 or machines > 1):
        problems.append(
            f"--num_processes {settings.num_processes}: SageMaker starts a process for each GPU of the instance_type;"
            " leave it out"
        )
    if settings.module or settings.no_python:
        problems.append("--module and --no_python: SageMaker starts a Python file; name the file")
        return problems
    wrong = script_problem(request.script, module=False, no_python=False, cwd=request.cwd, environ=request.environ)
    return [*problems, *([wrong] if wrong is not None else [])]
