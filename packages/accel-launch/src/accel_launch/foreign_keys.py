"""The keys of Accelerate's config files that are not accel's, and which of their values mean nothing here.

The flags of `accelerate launch` that have a key are judged by the same table (`foreign_flags`).

Source: shared/reference/accelerate-api.md, section 1.13.
"""

from collections.abc import Callable

COMPUTE_ENVIRONMENT = "compute_environment"
DISTRIBUTED_TYPE = "distributed_type"
LEGACY_FP16 = "fp16"
LOCAL, SAGEMAKER = "LOCAL_MACHINE", "AMAZON_SAGEMAKER"

_EMPTY: tuple[object, ...] = (None, "", False, "no", "NO", 0, -1)


NOT_YET = "accel launch cannot do that yet"


def nothing(value: object) -> bool:
    """Whether a value asks for nothing at all."""
    return value in _EMPTY or value == {} or value == []


def nothing_or(*words: object) -> Callable[[object], bool]:
    """Whether a value is one of some words, or asks for nothing."""
    return lambda value: nothing(value) or value in words


def anything(value: object) -> bool:
    """True: no value of the key matters here."""
    return True


MEANS_NOTHING: dict[str, Callable[[object], bool]] = {
    "command_file": nothing,
    "commands": nothing,
    "debug": nothing,
    "deepspeed_config": nothing,
    "downcast_bf16": nothing,
    "dynamo_backend": nothing,
    "dynamo_config": lambda value: nothing(value) or value == {"dynamo_backend": "NO"},
    "fp8_config": nothing,
    "fsdp_config": nothing,
    # The two below only matter with several machines or with a TPU, which other keys ask for.
    "main_training_function": anything,
    "same_network": anything,
    "megatron_lm_config": nothing,
    "mpirun_config": nothing,
    "parallelism_config": nothing,
    "tpu_env": nothing,
    "tpu_name": nothing,
    "tpu_use_cluster": nothing,
    "tpu_use_sudo": nothing,
    "tpu_vm": nothing,
    "tpu_zone": nothing,
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


def unsupported(key: str, value: object) -> str | None:
    """Why a key of `MEANS_NOTHING` cannot be followed with this value, or None where the value means nothing."""
    return None if MEANS_NOTHING[key](value) else NOT_YET
