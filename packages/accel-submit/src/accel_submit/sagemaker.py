"""Write jobs for Amazon SageMaker: the arguments of its ModelTrainer, which `sagemaker_client` submits.

Source:
    https://sagemaker.readthedocs.io/en/stable/api/sagemaker_train.html
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, final

from accel_launch.cli.option_types import COUNT, NUMBER, SWITCH, OptionType, as_text
from accel_launch.config.accelerate_config import asks_nothing
from accel_launch.job.plan import plan_one

from accel_submit.scheduler import TEXT, Scheduler, SubmitRequest, Types

#: what torchrun, which SageMaker starts on each machine, does or decides, and accel launch does not
_TORCHRUN = "SageMaker starts the processes with torchrun"
_TORCHRUNS = (
    "machine_rank main_process_ip main_process_port rdzv_backend join_timeout log_dir tee grace_period max_restarts"
    " enable_cpu_affinity explain"
)
# The kinds that have GPUs or Trainium, which torchrun is for.
_GPU_INSTANCE = re.compile(r"ml[._](p|g|trn)[a-z0-9-]*\..*|local_gpu")
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")


def _table(*columns: str) -> OptionType:
    """Return the type of a file with two columns of these names, which becomes a mapping."""

    def read(path: str) -> dict[str, str] | None:
        try:
            head, *rows = csv.reader(Path(path).read_text(encoding="utf-8").splitlines(), delimiter="\t")
        except (OSError, ValueError):
            return None
        return dict(rows) if head == [*columns] and all(len(row) == 2 for row in rows) else None

    names = f"named {' and '.join(columns)} in the first line"
    return OptionType("FILE", f"a file of two columns with a tab between them, {names}", read)


#: the submit options, with their types and fields in the job file: PART.NAME is a field of a part of the ModelTrainer
_FIELDS: dict[str, tuple[Any, str]] = {
    "role": (TEXT, "role"),
    "instance_type": (TEXT, "compute.instance_type"),
    "instance_count": (COUNT, "compute.instance_count"),
    "image_uri": (TEXT, "training_image"),
    "framework_version": (TEXT, "image.version"),
    "py_version": (TEXT, "image.py_version"),
    "source_dir": (TEXT, "source_code.source_dir"),
    "base_job_name": (TEXT, "base_job_name"),
    "volume_size": (NUMBER, "compute.volume_size_in_gb"),
    "volume_kms_key": (TEXT, "compute.volume_kms_key_id"),
    "max_run": (COUNT, "stopping_condition.max_runtime_in_seconds"),
    "max_wait": (COUNT, "stopping_condition.max_wait_time_in_seconds"),
    "use_spot_instances": (SWITCH, "compute.enable_managed_spot_training"),
    "keep_alive_period_in_seconds": (NUMBER, "compute.keep_alive_period_in_seconds"),
    "input_mode": (TEXT, "training_input_mode"),
    "output_path": (TEXT, "output_data_config.s3_output_path"),
    "output_kms_key": (TEXT, "output_data_config.kms_key_id"),
    "checkpoint_s3_uri": (TEXT, "checkpoint_config.s3_uri"),
    "checkpoint_local_path": (TEXT, "checkpoint_config.local_path"),
    "enable_network_isolation": (SWITCH, "networking.enable_network_isolation"),
    "encrypt_inter_container_traffic": (SWITCH, "networking.enable_inter_container_traffic_encryption"),
    "profile": (TEXT, "session.profile_name"),
    "region": (TEXT, "session.region_name"),
    "inputs_file": (_table("channel_name", "data_location"), "inputs"),
    "metrics_file": (_table("metric_name", "metric_regex"), "metrics"),
}
#: keys of Accelerate's config files, with the submit options that they are
_OF_ACCELERATE = {
    "ec2_instance_type": "instance_type",
    "iam_role_name": "role",
    "num_machines": "instance_count",
    "pytorch_version": "framework_version",
    "sagemaker_inputs_file": "inputs_file",
    "sagemaker_metrics_file": "metrics_file",
    **{name: name for name in ("base_job_name", "image_uri", "profile", "py_version", "region")},
}


@final
class SageMakerScheduler(Scheduler):
    """A scheduler that writes the arguments of a ModelTrainer as JSON."""

    name = "sagemaker"
    default_file = "accel-sagemaker.json"
    client = (sys.executable, "-m", "accel_submit.sagemaker_client")
    client_package = "sagemaker"
    types: ClassVar[Types] = {name: kind for name, (kind, _) in _FIELDS.items()}
    machines_option = "instance_count"
    ignores: ClassVar = {
        **dict.fromkeys(_TORCHRUNS.split(), _TORCHRUN),
        **dict.fromkeys(("module", "no_python"), "SageMaker starts a Python file"),
        "num_processes": "SageMaker starts a process for each GPU of the instance_type",
        "gpu_ids": "SageMaker gives the job its GPUs, numbered from 0; ask for a number of them",
    }

    def write_job(self, request: SubmitRequest) -> str:
        """Return the arguments of a ModelTrainer for the settings, submit options and arguments of a script."""
        settings, options, problems = request.settings, request.options, request.problems
        _check(request)
        script = request.cwd / request.script
        folder = request.cwd / options["source_dir"] if "source_dir" in options else script.parent
        if not script.is_relative_to(folder):
            problems.append(f"submit option source_dir={folder}: the script {request.script} is not in it")
            folder = script.parent
        content: dict[str, Any] = {
            "submit": self.marker,
            "hyperparameters": _hyperparameters(request.arguments, problems),
            "environment": dict(plan_one(replace(settings, gpu_ids=None), (), {}).environ),
            # One process on one machine needs no torchrun, and SageMaker has none for machines without GPUs.
            "torchrun": bool(_GPU_INSTANCE.fullmatch(options.get("instance_type", ""))),
        }
        own = {"source_dir": str(folder), "instance_count": request.machines}
        for name, value in {**options, **own}.items():
            part, _, field = _FIELDS[name][1].rpartition(".")
            (content.setdefault(part, {}) if part else content)[field] = value
        content["source_code"]["entry_script"] = str(script.relative_to(folder))
        return json.dumps(content, indent=2) + "\n"

    @staticmethod
    def options_of_config(content: Mapping[object, object]) -> tuple[dict[str, str], list[str]]:
        """Convert a config file of Accelerate to submit options.

        Args:
            content: The content of the file.

        Returns:
            The submit options, as texts, and a sentence for each setting that cannot be followed.
        """
        problems = []
        named = {option: content.get(key) for key, option in _OF_ACCELERATE.items()}
        more = content.get("additional_args")
        if isinstance(more, Mapping):
            named |= {str(name): value for name, value in more.items()}
        elif not asks_nothing(more):
            problems.append(f"additional_args: expected names with values, found {more!r}")
        if content.get("transformers_version") and not named.get("image_uri"):
            instead = "remove the line and list transformers in requirements.txt, or give image_uri"
            problems.append(f"transformers_version is not supported, as the image is that of PyTorch: {instead}")
        options = {name: as_text(value) for name, value in named.items() if not asks_nothing(value)}
        return options, problems


def _hyperparameters(arguments: Sequence[str], problems: list[str]) -> dict[str, str]:
    """Return the script's arguments by name: SageMaker gives them to the script as `--name value`."""
    values: dict[str, str] = {}
    odd: list[str] = []
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not equals and words and not _OPTION.fullmatch(words[0].partition("=")[0]):
            equals, value = "=", words.pop(0)
        if not equals or not _OPTION.fullmatch(name) or name.lstrip("-") in values:
            odd.append(f"{name}{equals}{value}")
        values[name.lstrip("-")] = value
    if odd:
        wrong = f"does not stand for {', '.join(map(repr, odd))}, or only for one of a name"
        problems.append(f"arguments of the script: SageMaker gives each once, as --name value, which {wrong}")
    return values


def _check(request: SubmitRequest) -> None:
    """Add to the problems what SageMaker lacks, and what it does not do."""
    options, machines, problems = request.options, request.machines, request.problems
    needed = ["role", "instance_type", *([] if "image_uri" in options else ["framework_version", "py_version"])]
    if missing := [name for name in needed if name not in options]:
        instead = "" if "image_uri" in options else "; image_uri takes the place of framework_version and py_version"
        problems.append(f"--submit_options lacks {', '.join(missing)}, which SageMaker needs{instead}")
    kind = options.get("instance_type")
    if kind and machines > 1 and not _GPU_INSTANCE.fullmatch(kind):
        alone = "SageMaker connects machines with GPUs only; ask for one machine, or for a type such as ml.g5.xlarge"
        problems.append(f"{machines} machines of type {kind}: {alone}")
