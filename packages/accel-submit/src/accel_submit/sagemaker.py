"""Amazon SageMaker: a file with the arguments of its PyTorch estimator.

Source: https://sagemaker.readthedocs.io/en/v2/frameworks/pytorch/sagemaker.pytorch.html.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, final

from accel_launch.cli.option_types import SWITCH
from accel_launch.cli.options import LaunchSettings

from accel_submit.sagemaker_settings import ESTIMATOR, KNOWN, SESSION, TABLES, options_of_config
from accel_submit.scheduler import JobFile, Scheduler, SubmitRequest, unknown_options, whole_number

#: what torchrun, which SageMaker starts on each machine, does or says in place of accel launch
_TORCHRUN = "SageMaker starts the processes with torchrun"
_TORCHRUNS = (
    "machine_rank main_process_ip main_process_port rdzv_backend join_timeout log_dir tee grace_period max_restarts"
    " enable_cpu_affinity explain"
)
# The kinds for which the client takes torch_distributed: with GPUs or Trainium.
_GPU_INSTANCE = re.compile(r"ml[._](p|g|trn)[a-z0-9-]*\..*|local_gpu")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")


@final
class SageMakerScheduler(Scheduler):
    """Writes the arguments of an estimator as JSON, and submits it with the `sagemaker` client, version 2 or 3."""

    name = "sagemaker"
    default_file = "accel-sagemaker.json"
    machines_option = "instance_count"
    ignores: ClassVar = {
        **dict.fromkeys(_TORCHRUNS.split(), _TORCHRUN),
        "gpu_ids": "SageMaker gives the job its GPUs, numbered from 0; ask for a number of them",
    }

    #: what a config file of Accelerate for SageMaker asks for
    options_of_config = staticmethod(options_of_config)

    def write_job(self, request: SubmitRequest) -> JobFile:
        """The arguments that settings, submit options and the script's arguments come to."""
        options, problems = request.options, _problems(request)
        given = _typed(options, problems)
        script = request.cwd / request.script
        folder = request.cwd / str(given["source_dir"]) if "source_dir" in given else script.parent
        if not script.is_relative_to(folder):
            problems.append(f"submit option source_dir={given['source_dir']}: the script {request.script} is not in it")
            folder = script.parent
        inputs, metrics = (_table(options, name, request.cwd, problems) for name in TABLES)
        # One process on one machine needs no torchrun, and SageMaker has none for machines without GPUs.
        torchrun = bool(_GPU_INSTANCE.fullmatch(str(given.get("instance_type", ""))))
        estimator = {
            "entry_point": str(script.relative_to(folder)),
            "hyperparameters": _hyperparameters(request.arguments, problems),
            "environment": _environment(request.settings),
            "distribution": {"torch_distributed": {"enabled": True}} if torchrun else None,
            "metric_definitions": [{"Name": name, "Regex": regex} for name, regex in metrics.items()],
            **given,
            "source_dir": str(folder),
            "instance_count": request.machines,
        }
        content = {
            "submit": self.marker,
            "estimator": {name: value for name, value in estimator.items() if value or name == "hyperparameters"},
            "session": {name: options[name] for name in SESSION if name in options},
            "inputs": inputs,
        }
        said = {name: value for name, value in content.items() if value}
        return JobFile(json.dumps(said, indent=2) + "\n", problems)

    def missing_client(self, environ: Mapping[str, str]) -> str | None:
        """The client, unless this interpreter has it."""
        return None if find_spec("sagemaker") else "the client is not installed (pip install sagemaker)"

    def command(self, path: str) -> str:
        """The same command line; the file is for reading, and for other tools."""
        return "the same command once more"

    def submit_file(self, path: Path, environ: Mapping[str, str]) -> str:
        """Submits what the file says, and tells the name of the job.

        Raises: CannotRun with the words of the client if it refuses.
        """
        from accel_submit.sagemaker_client import start

        return f"submitted as training job {start(json.loads(path.read_text(encoding='utf-8')))}"


def _environment(settings: LaunchSettings) -> dict[str, str]:
    """The variables by which each process learns what accel launch would have told it."""
    values = {
        "ACCEL_USE_CPU": int(settings.cpu) if settings.said("cpu") else None,
        "ACCEL_MIXED_PRECISION": settings.mixed_precision,
        "ACCEL_GRADIENT_ACCUMULATION_STEPS": settings.gradient_accumulation_steps,
        "OMP_NUM_THREADS": settings.num_cpu_threads_per_process,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _typed(options: Mapping[str, str], problems: list[str]) -> dict[str, str | int | bool]:
    """The arguments of the estimator among the options, as what they are."""
    arguments: dict[str, str | int | bool] = {}
    for name in [name for name in options if name in ESTIMATOR and name != "instance_count"]:
        kind, _ = ESTIMATOR[name]
        if kind is int:
            value: str | int | bool | None = whole_number(options, name, problems, least=0)
        else:
            value = SWITCH.convert(options[name], None, None) if kind is bool else options[name] or None
        if value is not None:
            arguments[name] = value
    return arguments


def _table(options: Mapping[str, str], name: str, cwd: Path, problems: list[str]) -> dict[str, str]:
    """The two columns of a file of values between tabs, whose first line names them."""
    if name not in options:
        return {}
    try:
        rows = list(csv.reader((cwd / options[name]).read_text(encoding="utf-8").splitlines(), delimiter="\t"))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"submit option {name}={options[name]}: it cannot be read: {error}")
        return {}
    head, *rest = [[cell.strip() for cell in row] for row in rows if row] or [[]]
    if head != [*TABLES[name]] or any(len(row) != 2 for row in rest):
        columns = f"named {' and '.join(TABLES[name])} in the first line"
        problems.append(
            f"submit option {name}={options[name]}: expected two columns with a tab between them, {columns}"
        )
        return {}
    return dict(rest)


def _hyperparameters(arguments: Sequence[str], problems: list[str]) -> dict[str, str]:
    """The script's arguments by name: SageMaker gives them to the script as `--name value`."""
    values: dict[str, str] = {}
    odd: list[str] = []
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not _OPTION.fullmatch(name):
            odd.append(f"{name + equals + value!r} belongs to no name")
        elif not equals and (not words or _OPTION.fullmatch(words[0].partition("=")[0])):
            odd.append(f"{name} has no value")
        else:
            value = value if equals else words.pop(0)
            if values.setdefault(name.lstrip("-"), value) != value:
                odd.append(f"{name} is given twice")
    if odd:
        problems.append(
            f"arguments of the script: SageMaker gives each as --name value, and {'; '.join(odd)}; change the script so"
            " that each of them is a name with one value"
        )
    return values


def _problems(request: SubmitRequest) -> list[str]:
    """What SageMaker lacks, and what it does not do."""
    settings, options, machines = request.settings, request.options, request.machines
    problems = unknown_options(options, KNOWN, "SageMaker")
    needed = ["role", "instance_type"]
    needed += [] if options.get("image_uri") else ["framework_version", "py_version"]
    if missing := [name for name in needed if not options.get(name)]:
        instead = "" if options.get("image_uri") else "; image_uri takes the place of framework_version and py_version"
        problems.append(f"--submit_options lacks {', '.join(missing)}, which SageMaker needs{instead}")
    kind = options.get("instance_type")
    if kind and machines > 1 and not _GPU_INSTANCE.fullmatch(kind):
        problems.append(
            f"{machines} machines of type {kind}: SageMaker connects machines with GPUs only; ask for one machine, or"
            " for a type such as ml.g5.xlarge"
        )
    if settings.num_processes is not None and (settings.num_processes != 1 or machines > 1):
        starts = "SageMaker starts a process for each GPU of the instance_type; leave it out"
        problems.append(f"--num_processes {settings.num_processes}: {starts}")
    if settings.module or settings.no_python:
        problems.append("--module and --no_python: SageMaker starts a Python file; name the file")
    return problems
