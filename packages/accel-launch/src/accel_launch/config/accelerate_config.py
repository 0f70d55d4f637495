"""The keys of Accelerate's config files that are not accel's, and which of their values mean nothing here.

The flags of `accelerate launch` that have a key are judged by the same table (`foreign_flags`).

Source: shared/reference/accelerate-api.md, section 1.13.
"""

from collections.abc import Callable, Mapping

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


def parts(**asks_nothing: Callable[[object], bool]) -> Callable[[object], bool]:
    """Whether a value asks for nothing, or is a mapping in which each of these parts asks for nothing.

    Other parts are details of these, and matter only with them.
    """

    def judge(value: object) -> bool:
        if not isinstance(value, Mapping):
            return nothing(value)
        known = any(name in value for name in asks_nothing)
        return not value or (known and all(asked(value.get(name)) for name, asked in asks_nothing.items()))

    return judge


def _sizes_of_one(value: object) -> bool:
    """Whether no axis of a mesh has more than one place; what else there is are details of an axis."""
    if not isinstance(value, Mapping) or not value:
        return nothing(value)
    sizes = [each for name, each in value.items() if str(name).endswith("_size")]
    return bool(sizes) and all(each in (None, 1, "1") for each in sizes)


MEANS_NOTHING: dict[str, Callable[[object], bool]] = {
    "command_file": nothing,
    "commands": nothing,
    "debug": nothing,
    "deepspeed_config": nothing,
    "downcast_bf16": nothing,
    "dynamo_backend": nothing,
    "dynamo_config": parts(dynamo_backend=nothing),
    "fp8_config": nothing,
    "fsdp_config": nothing,
    "ipex_config": parts(ipex=nothing, use_xpu=nothing),
    # The two below only matter with several machines or with a TPU, which other keys ask for.
    "main_training_function": anything,
    "same_network": anything,
    "megatron_lm_config": nothing,
    "mpirun_config": parts(mpirun_hostfile=nothing),
    "parallelism_config": _sizes_of_one,
    "tp_config": _sizes_of_one,
    "tpu_env": nothing,
    "tpu_name": nothing,
    "tpu_use_cluster": nothing,
    "tpu_use_sudo": nothing,
    "tpu_vm": nothing,
    "tpu_zone": nothing,
    "use_mps_device": nothing,
}

# Why a value that asks for something cannot be followed, where more is to be said than that.
WITH_MPIRUN = "start the script with mpirun itself"
WITHOUT_IPEX = "accel launch does not set up Intel's extension or XPUs; use the extension in the script"
_WHY = {"ipex_config": WITHOUT_IPEX, "mpirun_config": WITH_MPIRUN}

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
    return None if MEANS_NOTHING[key](value) else _WHY.get(key, NOT_YET)
