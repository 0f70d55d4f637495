"""Write and read sharded models as libraries for Accelerate do, in a folder of torch's distributed checkpoint each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, save_weights
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from accel_names.checkpoint.distributed_checkpoint import DistributedCheckpoint
from accel_names.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME


def _folder(root: str | Path, stem: str, index: int) -> str:
    return str(Path(root) / f"{stem}_{index}")


def _weights(model: nn.Module, *, adapter_only: bool) -> dict[str, Any]:
    return {"model": get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=adapter_only))}


def save_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: nn.Module,
    output_dir: str | Path,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Write the part of each rank into `output_dir/pytorch_model_fsdp_N`.

    Args:
        fsdp_plugin: Not used: the model is sharded already.
        accelerator: The accelerator that has prepared it.
        model: The prepared model.
        output_dir: The folder that gets it.
        model_index: The number in the name, for one of several.
        adapter_only: Whether trained weights alone are written.
        use_dcp: Not used: all ranks share a folder, which any number of ranks can read.

    Collective:
        Every rank must call.
    """
    state = _weights(accelerator.unwrap_model(model), adapter_only=adapter_only)
    save(state, checkpoint_id=_folder(output_dir, FSDP_MODEL_NAME, model_index))


def load_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: nn.Module,
    input_dir: str | Path,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Read into a model what `save_fsdp_model` wrote, on any number of ranks.

    Args:
        fsdp_plugin: Not used: the model is sharded already.
        accelerator: The accelerator that has prepared it.
        model: The prepared model.
        input_dir: The folder that has it.
        model_index: The number in the name, for one of several.
        adapter_only: Whether trained weights alone are read.
        use_dcp: Not used: all ranks share a folder, which any number of ranks can read.

    Collective:
        Every rank must call.
    """
    inner = accelerator.unwrap_model(model)
    state = _weights(inner, adapter_only=adapter_only)
    load(state, checkpoint_id=_folder(input_dir, FSDP_MODEL_NAME, model_index))
    set_model_state_dict(inner, state["model"], options=StateDictOptions(strict=not adapter_only))


def save_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: nn.Module,
    output_dir: str | Path,
    optimizer_index: int = 0,
    use_dcp: bool = True,
) -> None:
    """Write the state of each rank's part into `output_dir/optimizer_N`.

    Args:
        fsdp_plugin: Not used: the model is sharded already.
        accelerator: The accelerator that has prepared it.
        optimizer: The prepared optimizer.
        model: The prepared model.
        output_dir: The folder that gets it.
        optimizer_index: The number in the name, for one of several.
        use_dcp: Not used: all ranks share a folder, which any number of ranks can read.

    Collective:
        Every rank must call.
    """
    inner = accelerator.unwrap_model(model)
    state = {"optimizer": get_optimizer_state_dict(inner, getattr(optimizer, "optimizer", optimizer))}
    save(state, checkpoint_id=_folder(output_dir, OPTIMIZER_NAME, optimizer_index))


def load_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: nn.Module,
    input_dir: str | Path,
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Read into an optimizer what `save_fsdp_optimizer` wrote on any number of ranks.

    Args:
        fsdp_plugin: Not used: the model is sharded already.
        accelerator: The accelerator that has prepared it.
        optimizer: The prepared optimizer.
        model: The prepared model.
        input_dir: The folder that has it.
        optimizer_index: The number in the name, for one of several.
        adapter_only: Not used: the optimizer has the state of what it trains.
        use_dcp: Not used: all ranks share a folder, which any number of ranks can read.

    Collective:
        Every rank must call.
    """
    inner, stepped = accelerator.unwrap_model(model), getattr(optimizer, "optimizer", optimizer)
    state = {"optimizer": get_optimizer_state_dict(inner, stepped)}
    load(state, checkpoint_id=_folder(input_dir, OPTIMIZER_NAME, optimizer_index))
    set_optimizer_state_dict(inner, stepped, state["optimizer"])


def merge_fsdp_weights(
    checkpoint_dir: str | Path,
    output_path: str | Path,
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
) -> Path:
    """Write the whole weights in a folder of `save_fsdp_model` as one file, without a process group.

    Args:
        checkpoint_dir: The folder `pytorch_model_fsdp_N`.
        output_path: The folder to write into.
        safe_serialization: Whether to write safetensors, in place of what torch.save writes.
        remove_checkpoint_dir: Whether the folder with the parts is removed then.

    Returns:
        The path of the file, or of its index if there are several.

    Raises:
        CheckpointError: If the folder is damaged, or has no weights.
    """
    folder = Path(checkpoint_dir)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder: give the folder {FSDP_MODEL_NAME}_N that save_fsdp_model wrote"
        )
    state = DistributedCheckpoint(folder).state(lambda path: None)
    weights = state.get("model", state)
    wrong = [str(name) for name, tensor in weights.items() if not isinstance(tensor, torch.Tensor)]
    if wrong or not weights:
        raise CheckpointError(f"{folder} holds more than weights, or none: {', '.join(wrong)}")
    written = save_weights(weights, output_path, safe_serialization=safe_serialization)
    if remove_checkpoint_dir:
        shutil.rmtree(folder)
    return written
