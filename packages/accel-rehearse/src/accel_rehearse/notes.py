"""Make the notes of a rehearsal: numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from accel.checkpoint.parts import is_divided
from accel_state.topology import Topology

from accel_rehearse.allocations import NAME, ROW
from accel_rehearse.nested_tensors import bytes_of, local_bytes_of, tensors_in
from accel_rehearse.rehearsal import Rehearsal
from accel_rehearse.stage import EVALUATION
from accel_rehearse.training_length import length_of_training

#: bytes of a file of whole weights, at most
LARGEST_FILE = 10**10


def notes_of(rehearsal: Rehearsal, place: Topology) -> dict[str, Any]:
    """Return what a rehearsal that has ended has found of its rank, at its place."""
    allocations = rehearsal.allocations
    # what two models or optimizers share is there once
    parameters = {one for model in rehearsal.models for one in model.parameters()}
    states = {one for optimizer in rehearsal.optimizers for one in tensors_in(optimizer.state)}
    begin, end = [rehearsal.marks[0], *rehearsal.marks][-2:]
    flops = end[1] - begin[1]
    highest = max(allocations.changes, key=lambda change: change.total)
    peak = allocations.changes.index(highest) + 1
    rows = allocations.activations(peak, ROW)
    whole = bytes_of(parameters)
    # sharded tensors are in files of each rank, and others in one for each optimizer and in some for the weights
    weights = place.world_size if any(map(is_divided, rehearsal.models)) else math.ceil(whole / LARGEST_FILE)
    return {
        "rank": place.rank,
        "said": {
            "parameters_bytes": local_bytes_of(parameters),
            "gradients_bytes": sum(rehearsal.gradients_bytes.values()),
            "optimizer_bytes": local_bytes_of(states),
            "peak_bytes": highest.total,
            "evaluation_peak_bytes": max(
                (change.total for change in allocations.changes if change.phase == EVALUATION), default=0
            ),
            "peak_at": {"phase": highest.phase, "module": highest.module},
            "peak_by_kind": allocations.over(peak, peak)[0],
            "largest_modules": dict(allocations.activations(peak, NAME).most_common(8)),
            "memory_over_step": allocations.over(begin[2], end[2]),
            "exchanges": rehearsal.exchanges.by_name(begin[0], end[0], place.local_world_size),
            "flops": flops.total(),
            "flops_by_precision": flops,
        },
        "loop": {
            **length_of_training(rehearsal),
            "checkpoint_bytes": whole + bytes_of(states),
            "checkpoint_files": weights + len(rehearsal.optimizers),
        },
        "whole_bytes": whole,
        # what goes if each of a row of modules is computed again in the backward
        "recomputed_bytes": 0 if rehearsal.stage.recomputing else rows.total() - max(rows.values(), default=0),
        "lines": rehearsal.lines,
        "calls": rehearsal.exchanges.calls,
        "mistakes": [*rehearsal.mistakes, *_mistakes(rehearsal)],
        "refusals": rehearsal.refusals,
    }


def _mistakes(rehearsal: Rehearsal) -> Iterator[tuple[str, str, str]]:
    """Yield what this rank alone shows to be wrong: what, the line, and what would help."""
    if "unprepared" in rehearsal.lines and not rehearsal.training:
        yield (
            "the script trains on a loader that was not prepared: all ranks get the same samples",
            rehearsal.lines["unprepared"],
            "pass the loader to accelerator.prepare",
        )
    if not (rehearsal.gradients_bytes or rehearsal.mistakes or rehearsal.refusals):
        yield (
            "no optimizer has made a step with gradients",
            rehearsal.lines.get("prepare", ""),
            "prepare optimizer and loader, give the optimizer the parameters of the model, and step",
        )
