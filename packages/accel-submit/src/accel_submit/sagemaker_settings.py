"""The submit options for SageMaker: their types, their places in the client, and Accelerate's names for them."""

from __future__ import annotations

from collections.abc import Mapping

#: the arguments of `sagemaker.pytorch.PyTorch` (2.257) that one word can hold, each with its type, and with its place
#: in the ModelTrainer of version 3, if it has one there
ESTIMATOR: dict[str, tuple[type[str] | type[int], str]] = {
    "role": (str, "role"),
    "instance_type": (str, "compute.instance_type"),
    "instance_count": (int, "compute.instance_count"),
    "image_uri": (str, "training_image"),
    "framework_version": (str, ""),
    "py_version": (str, ""),
    "source_dir": (str, "source_code.source_dir"),
    "base_job_name": (str, "base_job_name"),
    "volume_size": (int, "compute.volume_size_in_gb"),
    "volume_kms_key": (str, "compute.volume_kms_key_id"),
    "max_run": (int, "stopping_condition.max_runtime_in_seconds"),
    "max_wait": (int, "stopping_condition.max_wait_time_in_seconds"),
    "max_retry_attempts": (int, ""),
    "use_spot_instances": (bool, "compute.enable_managed_spot_training"),
    "keep_alive_period_in_seconds": (int, "compute.keep_alive_period_in_seconds"),
    "input_mode": (str, "training_input_mode"),
    "output_path": (str, "output_data_config.s3_output_path"),
    "output_kms_key": (str, "output_data_config.kms_key_id"),
    "checkpoint_s3_uri": (str, "checkpoint_config.s3_uri"),
    "checkpoint_local_path": (str, "checkpoint_config.local_path"),
    "code_location": (str, ""),
    "container_log_level": (int, ""),
    "enable_network_isolation": (bool, "networking.enable_network_isolation"),
    "encrypt_inter_container_traffic": (bool, "networking.enable_inter_container_traffic_encryption"),
    "disable_profiler": (bool, ""),
    "training_plan": (str, ""),
}
#: what is no argument of the estimator: the account to use, and two files of tables with their columns
SESSION = ("profile", "region")
TABLES = {"inputs_file": ("channel_name", "data_location"), "metrics_file": ("metric_name", "metric_regex")}
KNOWN = (*ESTIMATOR, *SESSION, *TABLES)

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


def options_of_config(content: Mapping[object, object]) -> tuple[dict[str, str], list[str]]:
    """The submit options that a config file of Accelerate for SageMaker stands for, and what in it cannot be followed.

    Other keys are left alone.
    """
    options: dict[str, str] = {}
    problems: list[str] = []
    named = {_OF_ACCELERATE[str(key)]: value for key, value in content.items() if key in _OF_ACCELERATE}
    more = content.get("additional_args")
    if isinstance(more, Mapping):
        named |= {str(name): value for name, value in more.items()}
    elif more:
        problems.append(f"additional_args: expected names with values, found {more!r}")
    if content.get("transformers_version") and not named.get("image_uri"):
        problems.append(
            f"transformers_version: {content['transformers_version']!r} is not supported: accel launch uses the image"
            " of PyTorch; remove the line and list transformers in requirements.txt, or give image_uri"
        )
    for name, value in named.items():
        if value in (None, "", "no", "NO") or value in ({}, []):
            continue
        if name not in KNOWN:
            problems.append(f"additional_args: {name!r} is not supported; remove it")
        elif not isinstance(value, bool | int | float | str) or "," in str(value):
            problems.append(f"{name}: {value!r} is not supported: expected one word")
        else:
            options[name] = str(value)
    return options, problems
