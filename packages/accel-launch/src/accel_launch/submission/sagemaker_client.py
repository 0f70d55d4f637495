"""Starts a training job with the `sagemaker` client: the PyTorch estimator of version 2, or the ModelTrainer of 3.

The client is imported here only, by name: what its two versions have in common is that name and nothing else.
Source: https://sagemaker.readthedocs.io/en/v2/ and https://sagemaker.readthedocs.io/en/stable/api/sagemaker_train.html.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from accel_state.errors import CannotRun

#: where version 3 keeps what version 2 takes as an argument: a part of the ModelTrainer, and its name there
PLACES: dict[str, tuple[str, str]] = {
    "instance_type": ("compute", "instance_type"),
    "instance_count": ("compute", "instance_count"),
    "volume_size": ("compute", "volume_size_in_gb"),
    "volume_kms_key": ("compute", "volume_kms_key_id"),
    "keep_alive_period_in_seconds": ("compute", "keep_alive_period_in_seconds"),
    "use_spot_instances": ("compute", "enable_managed_spot_training"),
    "max_run": ("stopping_condition", "max_runtime_in_seconds"),
    "max_wait": ("stopping_condition", "max_wait_time_in_seconds"),
    "output_path": ("output_data_config", "s3_output_path"),
    "output_kms_key": ("output_data_config", "kms_key_id"),
    "checkpoint_s3_uri": ("checkpoint_config", "s3_uri"),
    "checkpoint_local_path": ("checkpoint_config", "local_path"),
    "enable_network_isolation": ("networking", "enable_network_isolation"),
    "encrypt_inter_container_traffic": ("networking", "enable_inter_container_traffic_encryption"),
    "entry_point": ("source_code", "entry_script"),
    "source_dir": ("source_code", "source_dir"),
}
#: what the ModelTrainer itself takes, by its name in version 2
PLAIN = {
    "role": "role",
    "base_job_name": "base_job_name",
    "hyperparameters": "hyperparameters",
    "environment": "environment",
    "input_mode": "training_input_mode",
    "image_uri": "training_image",
}
PARTS = {
    "compute": "Compute",
    "stopping_condition": "StoppingCondition",
    "output_data_config": "OutputDataConfig",
    "checkpoint_config": "CheckpointConfig",
    "networking": "Networking",
    "source_code": "SourceCode",
}
_ELSEWHERE = frozenset({"framework_version", "py_version", "distribution", "metric_definitions"})


def start(content: Mapping[str, Any]) -> str:
    """Starts the job that a file of ours describes, and gives its name; waits for nothing.

    Raises: CannotRun with the words of the client.
    """
    try:
        begin = _start_2 if find_spec("sagemaker.pytorch") is not None else _start_3
        return begin(content["estimator"], content.get("session", {}), content.get("inputs", {}))
    except CannotRun:
        raise
    # What the client and the network raise is documented nowhere, and all of it means the same here.
    except Exception as error:
        said = " ".join(str(error).split()) or "it says nothing more"
        raise CannotRun("sagemaker", [f"the sagemaker client refuses: {type(error).__name__}: {said}"]) from error


def _start_2(arguments: Mapping[str, Any], session: Mapping[str, str], inputs: Mapping[str, str]) -> str:
    estimator = import_module("sagemaker.pytorch").PyTorch(**arguments, **_session("sagemaker", session))
    estimator.fit(dict(inputs) or None, wait=False)
    return str(estimator.latest_training_job.name)


def _start_3(arguments: Mapping[str, Any], session: Mapping[str, str], inputs: Mapping[str, str]) -> str:
    train = import_module("sagemaker.train")
    configs = _configs()
    given = _session("sagemaker.core.helper.session_helper", session)
    trainer = train.ModelTrainer(**trainer_arguments(arguments, session.get("region")), **given)
    metrics = arguments.get("metric_definitions", ())
    if metrics:
        shapes = import_module("sagemaker.core.shapes")
        trainer.with_metric_definitions(
            [shapes.MetricDefinition(name=each["Name"], regex=each["Regex"]) for each in metrics]
        )
    channels = [configs.InputData(channel_name=name, data_source=place) for name, place in inputs.items()]
    trainer.train(input_data_config=channels or None, wait=False, logs=False)
    return str(trainer._latest_training_job.training_job_name)


def trainer_arguments(arguments: Mapping[str, Any], region: str | None) -> dict[str, Any]:
    """What the ModelTrainer of version 3 takes in place of the arguments of the estimator.

    Raises: CannotRun with every argument for which it has no place.
    """
    configs = _configs()
    homeless = [name for name in arguments if name not in (PLACES.keys() | PLAIN.keys() | _ELSEWHERE)]
    if homeless:
        raise CannotRun(
            "sagemaker",
            [f"submit option {name}: the client of version 3 has no such setting; leave it out" for name in homeless],
        )
    parts: dict[str, dict[str, Any]] = {}
    for name, (part, theirs) in PLACES.items():
        if name in arguments:
            parts.setdefault(part, {})[theirs] = arguments[name]
    plain = {theirs: arguments[name] for name, theirs in PLAIN.items() if name in arguments}
    if "image_uri" not in arguments:
        plain["training_image"] = _image(arguments, region)
    if "distribution" in arguments:
        plain["distributed"] = import_module("sagemaker.train.distributed").Torchrun()
    return {**plain, **{part: getattr(configs, PARTS[part])(**values) for part, values in parts.items()}}


def _configs() -> Any:
    """Where the parts of a ModelTrainer are; they have moved within version 3."""
    moved = find_spec("sagemaker.core.training") is not None
    return import_module("sagemaker.core.training.configs" if moved else "sagemaker.train.configs")


def _image(arguments: Mapping[str, Any], region: str | None) -> str:
    """The address of the PyTorch image for a version and a kind of machine."""
    found = region or import_module("boto3").Session().region_name
    if found is None:
        raise CannotRun(
            "sagemaker", ["the region is not said: give --submit_options region=..., or AWS_DEFAULT_REGION"]
        )
    return str(
        import_module("sagemaker.core.image_uris").retrieve(
            framework="pytorch",
            region=found,
            version=arguments["framework_version"],
            py_version=arguments["py_version"],
            instance_type=arguments["instance_type"],
            image_scope="training",
        )
    )


def _session(module: str, session: Mapping[str, str]) -> dict[str, Any]:
    """The argument for an account or a region that was named; without, the client finds its own."""
    if not session:
        return {}
    boto = import_module("boto3").Session(profile_name=session.get("profile"), region_name=session.get("region"))
    return {"sagemaker_session": import_module(module).Session(boto_session=boto)}
