"""Send files of checkpoints from a machine to another, which share no disk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError
from accel_checkpoint.filesystem import Filesystem
from accel_checkpoint.tensor_file import view_bytes

from accel.checkpoint.consensus import problems_of

#: the tag of these messages: above those of `accel_comm.transports`, which are below (1 << 30) + (1 << 28)
TAG = 3 << 29
#: bytes of a message
PIECE = 1 << 26


def exchange_files(rank: int, routes: Iterable[tuple[int, int, str]], folder: Path, sizes: Mapping[str, int]) -> None:
    """Send files to other ranks, and write what comes from others.

    Threads may call it: nothing takes these messages for the collectives of the process group. A file that cannot be
    read is sent with another content, so that no rank waits for it: whoever reads the checkpoint finds it damaged.

    Args:
        rank: This rank.
        routes: All files that travel, in the same order on all ranks: the rank that has it, the rank that gets it, and
            its name.
        folder: Folder of the files of this rank.
        sizes: The size of each file that this rank sends or gets.

    Raises:
        CheckpointError: What came could not be written.

    Collective:
        Each rank that sends to this one, or to which this one sends, must call.
    """
    import torch.distributed as dist

    def received(source: int, name: str) -> Iterator[memoryview]:
        memory = torch.empty(min(PIECE, sizes[name]), dtype=torch.uint8, device="cpu")
        for begun in range(0, sizes[name], PIECE):
            piece = memory[: sizes[name] - begun]
            dist.recv(piece, source, tag=TAG)
            yield view_bytes(piece)

    def write(name: str, content: Iterable[memoryview]) -> None:
        disk, path = Filesystem(), folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.remove(path)  # what is there is of a hook on each machine, or was cut short
        disk.write(path, content)

    messages, problems = list[Any](), list[str]()
    for source, target, name in routes:
        if source == rank:
            try:
                content = torch.from_file(str(folder / name), size=sizes[name], dtype=torch.uint8)
            except (OSError, RuntimeError):  # it is gone, or empty, which cannot be mapped
                content = torch.zeros(sizes[name], dtype=torch.uint8, device="cpu")
            messages += [dist.isend(piece, target, tag=TAG) for piece in torch.split(content, PIECE) if piece.numel()]
    for source, target, name in routes:
        if target == rank:
            pieces = received(source, name)
            problems += problems_of(partial(write, name, pieces))
            for _ in pieces:
                pass  # the sender waits until all has come
    for message in messages:
        message.wait()
    if problems:
        raise CheckpointError(f"what came from another machine could not be written: {problems[0]}")


def routes_of(
    parts: Collection[Sequence[str]], first_of: Sequence[int], there: Iterable[str]
) -> list[tuple[int, int, str]]:
    """Return how the parts of each machine come to the next machine, and all else from rank 0 to each.

    So a machine has the parts of its ranks, those of the machine before, and all else.

    Args:
        parts: Files with the parts of all ranks.
        first_of: The first rank of the machine of each rank, which gets all that its machine gets.
        there: The files on the machine of rank 0, in the same order on all ranks.
    """
    machines, divided = list(dict.fromkeys(first_of)), set(chain(*parts))
    after = dict(zip(machines, [*machines[1:], 0], strict=True))
    routes = [(source, after[first], names[source]) for names in parts for source, first in enumerate(first_of)]
    return routes + [(0, first, name) for first in machines[1:] for name in there if name not in divided]
