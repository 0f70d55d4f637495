"""Find out which keys of Accelerate's config files ask for something that is not here.

The flags of `accelerate launch` are judged by the same words (`accelerate_flags`).

Source:
    shared/reference/accelerate-api.md, section 1.13.
"""

import re
from collections.abc import Mapping

COMPUTE_ENVIRONMENT = "compute_environment"
DISTRIBUTED_TYPE = "distributed_type"
LEGACY_FP16 = "fp16"
#: what older files have in place of `dynamo_config`
LEGACY_DYNAMO = "dynamo_backend"
LOCAL, SAGEMAKER = "LOCAL_MACHINE", "AMAZON_SAGEMAKER"

NOT_YET = "accel launch cannot do that yet"
WITH_MPIRUN = "start the script with mpirun itself"
WITHOUT_IPEX = "accel launch does not set up Intel's extension or XPUs; use the extension in the script"

#: YAML's own words for false, which is what a file means by `mixed_precision: no` and `distributed_type: NO`
FALSE_WORDS = ("no", "false", "off")
_NOTHING = ("", "no", "none", "false", "0", "-1", "[]", "{}")
#: these matter only with several machines or with a TPU, which other keys ask for; and exchanges are always compared
_DETAILS = ("debug", "main_training_function", "same_network")
#: keys whose value is a mapping, with the parts of it that ask for something; the others are details of those
_PARTS = {
    "ipex_config": r"ipex|use_xpu",
    "mpirun_config": r"mpirun_hostfile",
    "tp_config": r".*_size",
}
ACCELERATE_KEYS = frozenset(
    {
        "command_file",
        "commands",
        "downcast_bf16",
        "fp8_config",
        "megatron_lm_config",
        "tpu_env",
        "tpu_name",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_zone",
        "use_mps_device",
        *_PARTS,
        *_DETAILS,
    }
)
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
KNOWN = frozenset(
    {*ACCELERATE_KEYS, *SAGEMAKER_KEYS, COMPUTE_ENVIRONMENT, DISTRIBUTED_TYPE, LEGACY_DYNAMO, LEGACY_FP16}
)


def asks_nothing(value: object) -> bool:
    """Return True for a value that asks for nothing at all."""
    return str(value).lower() in _NOTHING


def unsupported(key: str, value: object) -> str | None:
    """Return why one of `ACCELERATE_KEYS` cannot be followed with a value, or None if it asks for nothing here."""
    if key in _DETAILS or asks_nothing(value):
        return None
    if isinstance(value, Mapping) and key in _PARTS:
        parts = {str(name): part for name, part in value.items() if re.fullmatch(_PARTS[key], str(name))}
        # a mesh has one place along an axis of size 1
        quiet = [asks_nothing(part) or (name.endswith("_size") and str(part) == "1") for name, part in parts.items()]
        if parts and all(quiet):
            return None
    return {"ipex_config": WITHOUT_IPEX, "mpirun_config": WITH_MPIRUN}.get(key, NOT_YET)
