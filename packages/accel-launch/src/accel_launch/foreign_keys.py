"""The keys of Accelerate's config files that are not accel's, and which of their values mean nothing here.

Source: shared/reference/accelerate-api.md, section 1.13.
"""

from collections.abc import Callable

COMPUTE_ENVIRONMENT = "compute_environment"
DISTRIBUTED_TYPE = "distributed_type"
LEGACY_FP16 = "fp16"
LOCAL = "LOCAL_MACHINE"

_EMPTY: tuple[object, ...] = (None, "", False, "no", "NO", 0, -1)


def _nothing(value: object) -> bool:
    return value in _EMPTY or value == {} or value == []


def _nothing_or(*words: object) -> Callable[[object], bool]:
    return lambda value: _nothing(value) or value in words


def _anything(value: object) -> bool:
    return True


MEANS_NOTHING: dict[str, Callable[[object], bool]] = {
    "command_file": _nothing,
    "commands": _nothing,
    "debug": _nothing,
    "deepspeed_config": _nothing,
    "downcast_bf16": _nothing,
    "dynamo_backend": _nothing,
    "dynamo_config": lambda value: _nothing(value) or value == {"dynamo_backend": "NO"},
    "enable_cpu_affinity": _nothing,
    "fp8_config": _nothing,
    "fsdp_config": _nothing,
    "machine_rank": _nothing,
    # The two below only matter with several machines or with a TPU, which other keys ask for.
    "main_training_function": _anything,
    "same_network": _anything,
    "main_process_ip": _nothing,
    "main_process_port": _nothing,
    "megatron_lm_config": _nothing,
    "mpirun_config": _nothing,
    "num_machines": _nothing_or(1),
    "parallelism_config": _nothing,
    "rdzv_backend": _nothing_or("static"),
    "tpu_env": _nothing,
    "tpu_name": _nothing,
    "tpu_use_cluster": _nothing,
    "tpu_use_sudo": _nothing,
    "tpu_vm": _nothing,
    "tpu_zone": _nothing,
}

SAGEMAKER_KEYS = frozenset(
    {
        "additional_args",
        "base_job_name",
        "ec2_instance_type",
        "iam_role_name",
        "image_uri",
        "profile",
        "py_version",
        "pytorch_version",
        "region",
        "sagemaker_inputs_file",
        "sagemaker_metrics_file",
        "transformers_version",
    }
)

KNOWN = frozenset({*MEANS_NOTHING, *SAGEMAKER_KEYS, COMPUTE_ENVIRONMENT, DISTRIBUTED_TYPE, LEGACY_FP16})

INSTEAD: dict[str, str] = {
    "main_process_ip": "accel launch runs on this machine only",
    "main_process_port": "accel launch takes a free port",
    "machine_rank": "accel launch runs on this machine only",
    "num_machines": "accel launch runs on this machine only; torchrun on each machine works",
}
