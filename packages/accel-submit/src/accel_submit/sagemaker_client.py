"""Starts a training job with the `sagemaker` client: the PyTorch estimator of version 2, or the ModelTrainer of 3.

The client is imported here only, by name: what its two versions have in common is that name and nothing else.
Source: https://sagemaker.readthedocs.io/en/v2/ and https://sagemaker.readthedocs.io/en/stable/api/sagemaker_train.html.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from accel_state.errors import CannotRun

from accel_submit.sagemaker_settings import ESTIMATOR

#: where version 3 has what version 2 takes as an argument: PART.NAME is in a part of the ModelTrainer
_PLACES = {name: place for name, (_, place) in ESTIMATOR.items() if place} | {
    "entry_point": "source_code.entry_script",
    "hyperparameters": "hyperparameters",
    "environment": "environment",
}
_HANDLED = frozenset({"framework_version", "py_version", "distribution", "metric_definitions"})


def start(content: Mapping[str, Any]) -> str:
    """Starts the job that a job file describes, and gives its name; waits for nothing.

    Raises: CannotRun with the words of the client.
    """
    begin = _start_2 if find_spec("sagemaker.pytorch") is not None else _start_3
    try:
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
    given = _session("sagemaker.core.helper.session_helper", session)
    given |= trainer_arguments(arguments, session.get("region"))
    trainer = import_module("sagemaker.train").ModelTrainer(**given)
    if metrics := arguments.get("metric_definitions"):
        definition = import_module("sagemaker.core.shapes").MetricDefinition
        trainer.with_metric_definitions([definition(name=each["Name"], regex=each["Regex"]) for each in metrics])
    channels = [_configs().InputData(channel_name=name, data_source=place) for name, place in inputs.items()]
    trainer.train(input_data_config=channels or None, wait=False, logs=False)
    return str(trainer._latest_training_job.training_job_name)


def trainer_arguments(arguments: Mapping[str, Any], region: str | None) -> dict[str, Any]:
    """What the ModelTrainer of version 3 takes in place of the arguments of the estimator.

    Raises: CannotRun with every argument for which it has no place.
    """
    if homeless := [name for name in arguments if name not in _PLACES.keys() | _HANDLED]:
        missing = "the client of version 3 has no such setting; leave it out"
        raise CannotRun("sagemaker", [f"submit option {name}: {missing}" for name in homeless])
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name in arguments.keys() & _PLACES.keys():
        part, _, theirs = _PLACES[name].rpartition(".")
        (parts.setdefault(part, {}) if part else found)[theirs] = arguments[name]
    for part, values in parts.items():  # stopping_condition is a StoppingCondition
        found[part] = getattr(_configs(), part.title().replace("_", ""))(**values)
    if "image_uri" not in arguments:
        found["training_image"] = _image(arguments, region)
    if "distribution" in arguments:
        found["distributed"] = import_module("sagemaker.train.distributed").Torchrun()
    return found


def _configs() -> Any:
    """Where the parts of a ModelTrainer are; they have moved within version 3."""
    moved = find_spec("sagemaker.core.training") is not None
    return import_module("sagemaker.core.training.configs" if moved else "sagemaker.train.configs")


def _image(arguments: Mapping[str, Any], region: str | None) -> str:
    """The address of the PyTorch image for a version and a kind of machine."""
    region = region or import_module("boto3").Session().region_name
    if region is None:
        raise CannotRun(
            "sagemaker", ["the region is not said: give --submit_options region=..., or AWS_DEFAULT_REGION"]
        )
    same = {name: arguments[name] for name in ("py_version", "instance_type")}
    image = {"framework": "pytorch", "version": arguments["framework_version"], "image_scope": "training"}
    return str(import_module("sagemaker.core.image_uris").retrieve(region=region, **image, **same))


def _session(module: str, session: Mapping[str, str]) -> dict[str, Any]:
    """The argument for an account or a region that was named; without, the client finds its own."""
    if not session:
        return {}
    boto = import_module("boto3").Session(profile_name=session.get("profile"), region_name=session.get("region"))
    return {"sagemaker_session": import_module(module).Session(boto_session=boto)}
