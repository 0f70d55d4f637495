"""One verdict of all processes that hold parts of a model, whether weights can be loaded into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_checkpoint.errors import CheckpointError


def agree(problem: str | None, divided: Sequence[Any]) -> None:
    """Returns if no process that shares the divided tensors has a problem.

    Raises: CheckpointError on each process, with the problems of all.
    Collective: every process of the mesh of the first tensor must call, if there is one.
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
    distinct = set(problems.values())
    if distinct == {None}:
        return
    if len(distinct) == 1:
        raise CheckpointError(str(problem))
    lines = [f"rank {rank}: {words}" for rank, words in sorted(problems.items()) if words is not None]
    raise CheckpointError("\n".join(lines))
