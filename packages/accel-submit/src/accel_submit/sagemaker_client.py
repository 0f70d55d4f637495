"""Start a training job of SageMaker: `python -m accel_submit.sagemaker_client FILE`.

The `sagemaker` client, version 3, is imported by name, as only some have it.

Source:
    https://sagemaker.readthedocs.io/en/stable/api/sagemaker_train.html
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: keys of a job file that are no arguments of ModelTrainer
_NO_ARGUMENTS = ("submit", "image", "session", "inputs", "metrics", "torchrun")


def start(content: Mapping[str, Any]) -> str:
    """Start the training job that a job file describes, without waiting for it.

    Args:
        content: Content of a job file that SageMakerScheduler has written.

    Returns:
        The name of the job.
    """
    session = content.get("session")
    boto = import_module("boto3").Session(**session or {})
    arguments = trainer_arguments(content, boto.region_name)
    if session:
        helper = import_module("sagemaker.core.helper.session_helper")
        arguments["sagemaker_session"] = helper.Session(boto_session=boto)
    trainer = import_module("sagemaker.train").ModelTrainer(**arguments)
    if metrics := content.get("metrics"):
        definition = import_module("sagemaker.core.shapes").MetricDefinition
        trainer.with_metric_definitions([definition(name=name, regex=regex) for name, regex in metrics.items()])
    inputs = content.get("inputs", {}).items()
    channels = [_configs().InputData(channel_name=name, data_source=source) for name, source in inputs]
    trainer.train(input_data_config=channels or None, wait=False, logs=False)
    return str(trainer._latest_training_job.training_job_name)


def trainer_arguments(content: Mapping[str, Any], region: str | None) -> dict[str, Any]:
    """Return the arguments of the ModelTrainer.

    Parts become objects of the client: `stopping_condition` is a StoppingCondition.

    Args:
        content: The content of a job file.
        region: AWS region of the PyTorch image, used if the file has no training_image.
    """
    arguments = {name: value for name, value in content.items() if name not in _NO_ARGUMENTS}
    for name, value in arguments.items():
        if isinstance(value, dict) and name not in ("hyperparameters", "environment"):
            arguments[name] = getattr(_configs(), name.title().replace("_", ""))(**value)
    if "training_image" not in content:
        kind = content["compute"]["instance_type"]
        image = {"framework": "pytorch", "region": region, "image_scope": "training", "instance_type": kind}
        arguments["training_image"] = import_module("sagemaker.core.image_uris").retrieve(**image, **content["image"])
    if content["torchrun"]:
        arguments["distributed"] = import_module("sagemaker.train.distributed").Torchrun()
    return arguments


def _configs() -> Any:
    """Return the module of the parts of a ModelTrainer, which have moved within version 3."""
    moved = find_spec("sagemaker.core.training") is not None
    return import_module("sagemaker.core.training.configs" if moved else "sagemaker.train.configs")


if __name__ == "__main__":
    # of the errors of the client and the network, only the messages are printed
    sys.tracebacklimit = 0
    print(f"training job {start(json.loads(Path(sys.argv[1]).read_text(encoding='utf-8')))}")
