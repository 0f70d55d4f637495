"""Read and write Accelerate's config files as the objects that its programs make of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Self

from accel_launch.config.config_writer import write_config
from accel_state import DistributedType

from accel_names.configs import default_config_path
from accel_names.enumerations import ComputeEnvironment, SageMakerDistributedType

SAGEMAKER = ComputeEnvironment.AMAZON_SAGEMAKER
#: keys of old files, and what they became
_OLD = ("fp16", "dynamo_backend")


@dataclass
class BaseConfig:
    """The settings of every config file of Accelerate.

    Args:
        compute_environment: Word of `ComputeEnvironment`.
        distributed_type: Word of `DistributedType`, or for SageMaker of `SageMakerDistributedType`.
        mixed_precision: Name of the precision.
        use_cpu: Whether the CPU computes although there is an accelerator.
        debug: Whether exchanges are checked.
    """

    compute_environment: Any
    distributed_type: Any
    mixed_precision: str | None
    use_cpu: bool
    debug: bool

    def __post_init__(self) -> None:
        self.compute_environment = ComputeEnvironment(self.compute_environment)
        kinds: type[Enum] = SageMakerDistributedType if self.compute_environment is SAGEMAKER else DistributedType
        self.distributed_type = kinds(self.distributed_type)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings without those of which nothing is said."""
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None and value != {}}

    def to_json_file(self, json_file: str | Path) -> None:
        """Write the settings as JSON."""
        write_config(Path(json_file), json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n")

    def to_yaml_file(self, yaml_file: str | Path) -> None:
        """Write the settings as YAML."""
        import yaml

        write_config(Path(yaml_file), yaml.safe_dump(self.to_dict()))

    @classmethod
    def from_yaml_file(cls, yaml_file: str | Path | None = None) -> Self:
        """Return the settings of a file, YAML or JSON.

        Raises:
            ValueError: For a key that is none of Accelerate's, and for a file without a `distributed_type`.
        """
        path = default_config_path(yaml_file)
        content = read_yaml(path)
        if "distributed_type" not in content:
            raise ValueError(f"{path} has no distributed_type: expected a config file of Accelerate")
        content.setdefault("compute_environment", ComputeEnvironment.LOCAL_MACHINE)
        content.setdefault("mixed_precision", "fp16" if content.get("fp16") else None)
        content["distributed_type"] = content["distributed_type"] or "NO"  # which is False in YAML
        if content.get("dynamo_backend", "NO") != "NO":
            content["dynamo_config"] = {"dynamo_backend": content["dynamo_backend"]}
        known = {each.name for each in fields(cls)}
        if unknown := sorted(content.keys() - known - {*_OLD}):
            raise ValueError(f"{path}: expected keys of Accelerate, found {', '.join(unknown)}")
        return cls(**{"use_cpu": False, "debug": False, **{name: content[name] for name in content.keys() & known}})

    from_json_file = from_yaml_file


@dataclass
class ClusterConfig(BaseConfig):
    """The settings of jobs on machines of one's own.

    Args:
        num_processes: Number of processes; -1 if the launcher chooses it.
        machine_rank: Rank of this machine.
        num_machines: Number of machines.
        gpu_ids: Indices of the GPUs, or "all".
        main_process_ip: Address of the first machine.
        main_process_port: Port there.
        rdzv_backend: How machines find each other.
        same_network: Whether they are in one network.
        main_training_function: Function that each process of a TPU calls.
        enable_cpu_affinity: Whether processes have cores of their own.
        fp8_config: Options of float8.
        deepspeed_config: Options of DeepSpeed.
        fsdp_config: Options of FSDP.
        parallelism_config: Sizes of the axes of parallelism.
        megatron_lm_config: Options of Megatron-LM.
        mpirun_config: Options of MPI.
        dynamo_config: Options of torch.compile.
        downcast_bf16: Whether float is bfloat16 on a TPU.
        tpu_name: Name of a TPU pod.
        tpu_zone: Zone of the pod.
        tpu_use_cluster: Whether the pod is a cluster.
        tpu_use_sudo: Whether commands run as root.
        command_file: File of commands for the pod.
        commands: Commands for the pod.
        tpu_vm: Names of its machines.
        tpu_env: Variables of its processes.
    """

    num_processes: int = -1
    machine_rank: int = 0
    num_machines: int = 1
    gpu_ids: str | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str | None = "static"
    same_network: bool | None = False
    main_training_function: str = "main"
    enable_cpu_affinity: bool = False
    fp8_config: dict[str, Any] = field(default_factory=dict)
    deepspeed_config: dict[str, Any] = field(default_factory=dict)
    fsdp_config: dict[str, Any] = field(default_factory=dict)
    parallelism_config: dict[str, Any] = field(default_factory=dict)
    megatron_lm_config: dict[str, Any] = field(default_factory=dict)
    mpirun_config: dict[str, Any] = field(default_factory=dict)
    dynamo_config: dict[str, Any] = field(default_factory=dict)
    downcast_bf16: bool | str = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    tpu_use_cluster: bool = False
    tpu_use_sudo: bool = False
    command_file: str | None = None
    commands: list[str] | None = None
    tpu_vm: list[str] | None = None
    tpu_env: list[str] | None = None


@dataclass
class SageMakerConfig(BaseConfig):
    """The settings of jobs of Amazon SageMaker.

    Args:
        ec2_instance_type: Type of machine.
        iam_role_name: Role that the job has.
        image_uri: Image of a container.
        profile: Profile of the client of AWS.
        region: Region of AWS.
        num_machines: Number of machines.
        gpu_ids: Indices of the GPUs, or "all".
        base_job_name: What the name of a job begins with.
        pytorch_version: Version of torch in the container.
        transformers_version: Version of transformers there.
        py_version: Version of Python there.
        sagemaker_inputs_file: File that lists inputs.
        sagemaker_metrics_file: File that lists metrics.
        additional_args: Further arguments of the estimator.
        dynamo_config: Options of torch.compile.
        enable_cpu_affinity: Whether processes have cores of their own.
    """

    ec2_instance_type: str
    iam_role_name: str
    image_uri: str | None = None
    profile: str | None = None
    region: str = "us-east-1"
    num_machines: int = 1
    gpu_ids: str = "all"
    base_job_name: str = "accelerate-sagemaker-1"
    pytorch_version: str = "1.10.2"
    transformers_version: str = "4.17.0"
    py_version: str = "py38"
    sagemaker_inputs_file: str | None = None
    sagemaker_metrics_file: str | None = None
    additional_args: dict[str, Any] | None = None
    dynamo_config: dict[str, Any] = field(default_factory=dict)
    enable_cpu_affinity: bool = False


def load_config_from_file(config_file: str | Path | None) -> ClusterConfig | SageMakerConfig:
    """Return the settings of a config file of Accelerate.

    Args:
        config_file: The path; None for that of `accel config`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: For a key that is none of Accelerate's, and for a file without a `distributed_type`.
    """
    path = default_config_path(config_file)
    if not path.is_file():
        raise FileNotFoundError(f"there is no config file {path}")
    of_sagemaker = read_yaml(path).get("compute_environment") == SAGEMAKER.value
    return (SageMakerConfig if of_sagemaker else ClusterConfig).from_yaml_file(path)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the settings in a file of YAML, or JSON, of which something is said.

    Raises:
        ValueError: It is neither, or no mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected names with values, found a {type(content).__name__}")
    return {key: value for key, value in content.items() if value is not None}
