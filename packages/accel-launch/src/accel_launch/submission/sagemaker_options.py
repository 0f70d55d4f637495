"""The submit options for SageMaker, and what Accelerate's config files call them."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

from accel_launch.foreign_keys import nothing
from accel_launch.kinds import SWITCH

TEXT, NUMBER, TRUTH = "text", "number", "truth"

#: the arguments of `sagemaker.pytorch.PyTorch` (2.257) that one word can hold
ESTIMATOR: dict[str, str] = {
    "role": TEXT,
    "instance_type": TEXT,
    "instance_count": NUMBER,
    "image_uri": TEXT,
    "framework_version": TEXT,
    "py_version": TEXT,
    "source_dir": TEXT,
    "base_job_name": TEXT,
    "volume_size": NUMBER,
    "volume_kms_key": TEXT,
    "max_run": NUMBER,
    "max_wait": NUMBER,
    "max_retry_attempts": NUMBER,
    "use_spot_instances": TRUTH,
    "keep_alive_period_in_seconds": NUMBER,
    "input_mode": TEXT,
    "output_path": TEXT,
    "output_kms_key": TEXT,
    "checkpoint_s3_uri": TEXT,
    "checkpoint_local_path": TEXT,
    "code_location": TEXT,
    "container_log_level": NUMBER,
    "enable_network_isolation": TRUTH,
    "encrypt_inter_container_traffic": TRUTH,
    "disable_profiler": TRUTH,
    "training_plan": TEXT,
}
#: what is no argument of the estimator: the account to use, and two files of tables
SESSION = ("profile", "region")
TABLES = {"inputs_file": ("channel_name", "data_location"), "metrics_file": ("metric_name", "metric_regex")}
KNOWN = (*ESTIMATOR, *SESSION, *TABLES)

_NAMES = {
    "ec2_instance_type": "instance_type",
    "iam_role_name": "role",
    "num_machines": "instance_count",
    "pytorch_version": "framework_version",
    "sagemaker_inputs_file": "inputs_file",
    "sagemaker_metrics_file": "metrics_file",
}
_SAME = ("base_job_name", "image_uri", "profile", "py_version", "region")


def options_of_config(content: Mapping[object, object]) -> tuple[dict[str, str], list[str]]:
    """The submit options that a config file of Accelerate for SageMaker stands for, and what in it cannot be followed.

    The keys that are not SageMaker's are left alone.
    """
    options: dict[str, str] = {}
    problems: list[str] = []
    named = {_NAMES.get(str(key), str(key)): value for key, value in content.items() if key in _NAMES or key in _SAME}
    more = content.get("additional_args")
    if isinstance(more, Mapping):
        named |= {str(name): value for name, value in more.items()}
    elif not nothing(more):
        problems.append(f"additional_args: expected names with values, found {more!r}")
    if not nothing(content.get("transformers_version")) and not named.get("image_uri"):
        problems.append(
            f"transformers_version: {content['transformers_version']!r} is not supported: accel launch uses the image"
            " of PyTorch; remove the line and list transformers in requirements.txt, or give image_uri"
        )
    for name, value in named.items():
        if nothing(value) and value not in (False, 0):
            continue
        if name not in KNOWN:
            problems.append(f"additional_args: {name!r} is not supported; remove it")
        elif not isinstance(value, bool | int | float | str) or "," in str(value):
            problems.append(f"{name}: {value!r} is not supported: expected one word")
        else:
            options[name] = str(value)
    return options, problems


def typed(options: Mapping[str, str], problems: list[str]) -> dict[str, str | int | bool]:
    """The arguments of the estimator among the options, as what they are."""
    read: dict[str, Callable[[str], str | int | bool | None]] = {
        TEXT: lambda word: word or None,
        NUMBER: lambda word: int(word) if word.isascii() and word.isdigit() else None,
        TRUTH: lambda word: bool(SWITCH.read(word)) if SWITCH.read(word) is not None else None,
    }
    expected = {TEXT: "a word", NUMBER: "a whole number", TRUTH: SWITCH.expected}
    arguments: dict[str, str | int | bool] = {}
    for name, kind in ESTIMATOR.items():
        # How many machines is read for every queue alike.
        if name not in options or name == "instance_count":
            continue
        value = read[kind](options[name])
        if value is None:
            problems.append(f"submit option {name}={options[name]}: expected {expected[kind]}")
        else:
            arguments[name] = value
    return arguments


def table(options: Mapping[str, str], name: str, cwd: Path, problems: list[str]) -> dict[str, str]:
    """The two columns of a file of values between tabs, whose first line names them."""
    if name not in options:
        return {}
    path = cwd / options[name]
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines(), delimiter="\t"))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"submit option {name}={options[name]}: it cannot be read: {error}")
        return {}
    head, *rest = [row for row in rows if row] or [[]]
    if tuple(cell.strip() for cell in head) != TABLES[name] or any(len(row) != 2 for row in rest):
        problems.append(
            f"submit option {name}={options[name]}: expected two columns with a tab between them, named"
            f" {' and '.join(TABLES[name])} in the first line"
        )
        return {}
    return {left.strip(): right.strip() for left, right in rest}
