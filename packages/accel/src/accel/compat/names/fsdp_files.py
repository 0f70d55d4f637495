"""Files of sharded models as libraries for Accelerate write them: one folder of torch's distributed checkpoint each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, save_weights
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from accel.compat.distributed_checkpoint import DistributedCheckpoint
from accel.compat.names.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME


def _folder(root: str | Path, stem: str, index: int) -> Path:
    return Path(root) / f"{stem}_{index}"


def save_fsdp_model(
    fsdp_plugin: Any, accelerator: Any, model: nn.Module, output_dir: str | Path, model_index: int = 0
) -> None:
    """Writes the part of each rank into `output_dir/pytorch_model_fsdp_N`. Collective: every rank must call."""
    state = {"model": get_model_state_dict(accelerator.unwrap_model(model))}
    save(state, checkpoint_id=str(_folder(output_dir, FSDP_MODEL_NAME, model_index)))


def load_fsdp_model(
    fsdp_plugin: Any, accelerator: Any, model: nn.Module, input_dir: str | Path, model_index: int = 0
) -> None:
    """Reads into the model what `save_fsdp_model` wrote on any number of ranks. Collective: every rank must call."""
    inner = accelerator.unwrap_model(model)
    state = {"model": get_model_state_dict(inner)}
    load(state, checkpoint_id=str(_folder(input_dir, FSDP_MODEL_NAME, model_index)))
    set_model_state_dict(inner, state["model"])


def save_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: nn.Module,
    output_dir: str | Path,
    optimizer_index: int = 0,
) -> None:
    """Writes the state of each rank's part into `output_dir/optimizer_N`. Collective: every rank must call."""
    inner = accelerator.unwrap_model(model)
    state = {"optimizer": get_optimizer_state_dict(inner, getattr(optimizer, "optimizer", optimizer))}
    save(state, checkpoint_id=str(_folder(output_dir, OPTIMIZER_NAME, optimizer_index)))


def load_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: nn.Module,
    input_dir: str | Path,
    optimizer_index: int = 0,
) -> None:
    """Reads into the optimizer what `save_fsdp_optimizer` wrote on any number of ranks. Collective."""
    inner, stepped = accelerator.unwrap_model(model), getattr(optimizer, "optimizer", optimizer)
    state = {"optimizer": get_optimizer_state_dict(inner, stepped)}
    load(state, checkpoint_id=str(_folder(input_dir, OPTIMIZER_NAME, optimizer_index)))
    set_optimizer_state_dict(inner, stepped, state["optimizer"])


def merge_fsdp_weights(
    checkpoint_dir: str | Path,
    output_path: str | Path,
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
) -> Path:
    """The file of the whole weights in a folder of `save_fsdp_model`, written now; no process group is needed.

    Raises: CheckpointError if the folder is damaged, or has no weights.
    """
    folder = Path(checkpoint_dir)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder: give the folder {FSDP_MODEL_NAME}_N that save_fsdp_model wrote")
    state = DistributedCheckpoint(folder).state(lambda path: None)
    weights = state.get("model", state)
    wrong = [str(name) for name, tensor in weights.items() if not isinstance(tensor, torch.Tensor)]
    if wrong or not weights:
        raise CheckpointError(f"{folder} holds more than weights, or none: {', '.join(wrong)}")
    written = save_weights(weights, output_path, safe_serialization=safe_serialization)
    if remove_checkpoint_dir:
        shutil.rmtree(folder)
    return written
