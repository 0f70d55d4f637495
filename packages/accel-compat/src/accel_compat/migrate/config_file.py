"""Rewrite a config file of Accelerate in accel's own keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml
from accel_launch.config.accelerate_config import COMPUTE_ENVIRONMENT, DISTRIBUTED_TYPE, SAGEMAKER
from accel_launch.config.config_update import update_of
from accel_state.errors import CannotRun

from accel_compat.migrate.report import Kind, Note, Rewritten
from accel_compat.migrate.shell_commands import rewrite_commands


def rewrite_config(path: Path, text: str) -> Rewritten:
    """Rewrite a config file in accel's keys, or the commands in a file for another program, such as a workflow.

    A file that asks for something that accel cannot do stays as it is.

    Args:
        path: Path of the file.
        text: Its text.
    """
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        content = None
    if not isinstance(content, Mapping) or not {DISTRIBUTED_TYPE, COMPUTE_ENVIRONMENT} & set(content):
        return rewrite_commands(text)
    if content.get(COMPUTE_ENVIRONMENT) == SAGEMAKER:
        reads = f"accel launch --config_file {path.name} reads this file, and submits the job to SageMaker"
        return Rewritten(text, (Note(1, Kind.DIFFERENT, f"{reads}; see docs/guides/launching.md"),))
    try:
        new = update_of(path, "accel migrate")
    except CannotRun as error:
        reasons = [why.removeprefix(f"config file {path}: ") for why in error.reasons]
        return Rewritten(text, tuple(Note(1, Kind.BY_HAND, why) for why in reasons))
    left_out = f"left out, for they set nothing here: {', '.join(new.left_out)}"
    notes = (Note(1, Kind.DIFFERENT, left_out),) if new.left_out else ()
    return Rewritten(new.text.replace("\n", "\r\n") if "\r\n" in text else new.text, notes)
