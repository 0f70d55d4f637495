"""Files of sharded models as libraries for Accelerate write them: one folder of torch's distributed checkpoint each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, save_weights
from accel_checkpoint.load import read_plain
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
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from accel_names.checkpoint.distributed_checkpoint import DistributedCheckpoint
from accel_names.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME


def _folder(root: str | Path, stem: str, index: int) -> Path:
    return Path(root) / f"{stem}_{index}"


def _weights(model: nn.Module, *, adapter_only: bool) -> dict[str, Any]:
    return {"model": get_model_state_dict(model, options=StateDictOptions(ignore_frozen_params=adapter_only))}


def _write(state: dict[str, Any], folder: Path, rank: int, *, whole: bool) -> None:
    if whole:
        save(state, checkpoint_id=str(folder))
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tree_map(_own_part, state), _of_rank(folder, rank))


def _read(state: dict[str, Any], folder: Path, rank: int, *, whole: bool) -> dict[str, Any]:
    if whole:
        load(state, checkpoint_id=str(folder))
        return state
    path = _of_rank(folder, rank)
    if not path.is_file():
        raise CheckpointError(f"{path} is not there: as many ranks as wrote have to read, on the same files")
    restored: dict[str, Any] = tree_map(_restored, state, read_plain(path))
    return restored


def _of_rank(folder: Path, rank: int) -> Path:
    return folder.with_name(f"{folder.name}_rank{rank}.bin")


def _own_part(leaf: Any) -> Any:
    return leaf.to_local() if isinstance(leaf, DTensor) else leaf


def _restored(own: Any, kept: Any) -> Any:
    """What was kept, in the tensors that are there."""
    if not isinstance(own, torch.Tensor):
        return kept
    with torch.no_grad():
        _own_part(own).copy_(kept)
    return own


def save_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: nn.Module,
    output_dir: str | Path,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Writes the part of each rank into `output_dir/pytorch_model_fsdp_N`, of trained weights alone if `adapter_only`.

    Without `use_dcp` each rank writes a file of its own, which as many ranks can read.

    Collective: every rank must call.
    """
    state = _weights(accelerator.unwrap_model(model), adapter_only=adapter_only)
    _write(state, _folder(output_dir, FSDP_MODEL_NAME, model_index), accelerator.process_index, whole=use_dcp)


def load_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: nn.Module,
    input_dir: str | Path,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Reads into the model what `save_fsdp_model` wrote on any number of ranks, with the same words.

    Raises: CheckpointError if there is no file of this rank.
    Collective: every rank must call.
    """
    inner = accelerator.unwrap_model(model)
    state = _weights(inner, adapter_only=adapter_only)
    state = _read(state, _folder(input_dir, FSDP_MODEL_NAME, model_index), accelerator.process_index, whole=use_dcp)
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
    """Writes the state of each rank's part into `output_dir/optimizer_N`.

    Collective: every rank must call.
    """
    inner = accelerator.unwrap_model(model)
    state = {"optimizer": get_optimizer_state_dict(inner, getattr(optimizer, "optimizer", optimizer))}
    _write(state, _folder(output_dir, OPTIMIZER_NAME, optimizer_index), accelerator.process_index, whole=use_dcp)


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
    """Reads into the optimizer what `save_fsdp_optimizer` wrote on any number of ranks.

    `adapter_only` changes nothing: the optimizer has the state of what it trains.

    Raises: CheckpointError if there is no file of this rank.
    Collective: every rank must call.
    """
    inner, stepped = accelerator.unwrap_model(model), getattr(optimizer, "optimizer", optimizer)
    state = {"optimizer": get_optimizer_state_dict(inner, stepped)}
    state = _read(state, _folder(input_dir, OPTIMIZER_NAME, optimizer_index), accelerator.process_index, whole=use_dcp)
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
