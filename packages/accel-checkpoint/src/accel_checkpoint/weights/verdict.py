"""Agree with all processes that hold parts of a model on whether weights can be loaded into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_checkpoint.errors import CheckpointError


def agree(problem: str | None, divided: Sequence[Any]) -> None:
    """Raise on each process if one that shares the distributed tensors has a problem.

    Args:
        problem: Problem of this process.
        divided: The distributed tensors.

    Raises:
        CheckpointError: There are problems. The message has those of all.

    Collective:
        Every process of the mesh of the first tensor must call, if there is one.
    """
    problems = {0: problem}
    if divided:
        import torch.distributed as dist

        problems = {dist.get_rank(): problem}
        mesh = divided[0].device_mesh
        for axis in range(mesh.ndim):
            told: list[Any] = [None] * mesh.size(axis)
            dist.all_gather_object(told, problems, group=mesh.get_group(axis))
            problems = {rank: words for heard in told for rank, words in heard.items()}
    if set(problems.values()) == {problem}:
        lines = [problem] if problem is not None else []
    else:
        lines = [f"rank {rank}: {words}" for rank, words in sorted(problems.items()) if words is not None]
    if lines:
        raise CheckpointError("\n".join(lines))
