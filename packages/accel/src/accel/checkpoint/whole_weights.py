"""The whole weights of a sharded model on the main process, which gathers a few megabytes of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import save_weights
from accel_checkpoint.pieces import Box, blocks_of, held_part, is_distributed
from accel_state import ProcessControl, Run

from accel.checkpoint.consensus import RankConsensus, problems_of
from accel.checkpoint.parts import copy_axes, has_parts

#: the most bytes that are gathered at a time
PIECE = 1 << 24


def gathered_rows(tensor: torch.Tensor, run: Run) -> Iterator[torch.Tensor]:
    """Yield the values of a divided tensor, some rows after the other, in memory of the CPU.

    Collective:
        Every process must take all of them.
    """
    blocks = blocks_of(tensor)
    coordinate = run.mesh.coordinate(run.topology.rank)
    gives = all(coordinate[axis] == 0 for axis in copy_axes(tensor, run.mesh))
    first = (*tensor.shape, 1)[0]
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    step = max(1, PIECE // max(row_bytes, 1))
    for begin in range(0, first, step):
        length = min(step, first - begin)
        rows = Box(
            (begin, *[0] * (tensor.dim() - 1)) if tensor.dim() else (),
            (length, *tensor.shape[1:]) if tensor.dim() else (),
        )
        # bytes of a number that one rank gives and all others leave 0: their sum is the number, whatever it is
        sent = torch.zeros(rows.shape, dtype=tensor.dtype, device=run.placed_on)
        for box, held in blocks if gives else ():
            if (common := rows.overlap(box)) is not None:
                common.of(sent, rows).copy_(common.of(held, box))
        whole = run.transport.all_reduce(sent.reshape(-1).view(torch.uint8), "sum")
        yield whole.view(tensor.dtype).reshape(rows.shape).cpu()


def full_state_dict(state: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return a state dict with whole tensors on the CPU of the main process, and an empty one on the others.

    A state without divided tensors comes back as it is, on every process. Tensors that share memory still do.

    Collective:
        Every process must call, if a tensor is divided.
    """
    if not has_parts(state):
        return dict(state)
    main = run.topology.rank == 0
    whole: dict[str, Any] = {}
    known: dict[tuple[object, ...], torch.Tensor | None] = {}
    for name, tensor in state.items():
        if is_distributed(tensor):
            part = held_part(tensor)
            place = (part.untyped_storage()._cdata, part.storage_offset(), tuple(tensor.shape))
            if place not in known:
                known[place] = _gathered(tensor, run, keep=main)
            tensor = known[place]
        whole[name] = tensor
    return whole if main else {}


def _gathered(tensor: torch.Tensor, run: Run, *, keep: bool) -> torch.Tensor | None:
    rows = gathered_rows(tensor, run)
    if not keep:
        for _ in rows:
            pass
        return None
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    begin, flat = 0, whole.reshape(-1)
    for row in rows:
        flat[begin : begin + row.numel()].copy_(row.reshape(-1))
        begin += row.numel()
    return whole


def save_full_weights(
    state: Mapping[str, Any],
    folder: str | Path,
    processes: ProcessControl,
    max_shard_size: int | str,
    *,
    safe_serialization: bool,
) -> Path | None:
    """Write whole weights on the main process.

    Of a sharded model only pickled weights are whole in the memory of the main process.

    Args:
        state: The state dict of a model.
        folder: The folder for the files.
        processes: The processes that hold parts of it.
        max_shard_size: The largest file.
        safe_serialization: Write safetensors, not pickled weights.

    Returns:
        The path to open the weights by on the main process; None on the others.

    Raises:
        CheckpointError: Those of a sharded model could not be written; raised on every process.

    Collective:
        Every process must call, if a tensor is divided.
    """
    run, main, sharded = processes.run, bool(processes.is_main_process), has_parts(state)
    save = partial(save_weights, max_shard_size=max_shard_size, safe_serialization=safe_serialization)
    if not sharded:
        return save(state, folder) if main else None
    weights = state if safe_serialization else full_state_dict(state, run)
    paths: list[Path] = []

    def write() -> None:
        rows = partial(gathered_rows, run=run) if safe_serialization else None
        paths.append(save(weights, folder, rows=rows, writes=main))

    problems = problems_of(write) if safe_serialization or main else []
    RankConsensus(processes).require("save_model: written", f"the weights could not be saved in {folder}:", problems)
    return paths[0] if main else None
