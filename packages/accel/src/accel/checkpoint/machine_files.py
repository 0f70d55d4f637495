"""Send files of checkpoints from a machine to another, which share no disk."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accel_checkpoint import CheckpointError, FileDigest, StagedCheckpoint, read_manifest
from accel_checkpoint.manifest import MANIFEST
from accel_checkpoint.tensor_file import view_bytes

from accel.checkpoint.consensus import problems_of
from accel.checkpoint.save_job import SaveJob

#: the tag of these messages: above those of `accel_comm.transports`, which are below (1 << 30) + (1 << 28)
TAG = 3 << 29
#: bytes of a message
PIECE = 1 << 26


def exchange_files(
    folder: Path,
    receivers: Collection[int],
    to_send: Callable[[], Mapping[int, Mapping[str, FileDigest]]],
    sources: Collection[int],
    begin: Callable[[], StagedCheckpoint],
) -> None:
    """Send files to other ranks, and write what comes from others.

    Threads may call it: nothing takes these messages for the collectives of the process group.

    Args:
        folder: Folder of the files that are sent.
        receivers: The ranks to which this one sends.
        to_send: Returns the files for each of them. If it raises, or a file cannot be read, they get that error.
        sources: The ranks that send to this one.
        begin: Returns the hidden folder to write into.

    Raises:
        CheckpointError: Something could not be read or written, here or where it comes from, or is not what was sent.

    Collective:
        Each rank that sends to this one, or to which this one sends, must call.
    """
    import torch.distributed as dist

    sent, mapped, messages = dict[int, Mapping[str, FileDigest]](), dict[str, torch.Tensor](), list[Any]()

    def map_all() -> None:
        asked = to_send()
        for name, file in {name: file for files in asked.values() for name, file in files.items()}.items():
            if file.size:  # a file without content cannot be mapped
                mapped[name] = torch.from_file(str(folder / name), size=file.size, dtype=torch.uint8)
        sent.update(asked)

    problems = problems_of(map_all)  # before any message, as each receiver waits for one
    for rank in receivers:
        files = sent.get(rank, {})
        about = json.dumps([problems, [[name, file.size, file.xxh3] for name, file in files.items()]]).encode()
        contents = [torch.tensor([len(about)], device="cpu"), torch.frombuffer(bytearray(about), dtype=torch.uint8)]
        for name, file in files.items():
            contents += [mapped[name][begun : begun + PIECE] for begun in range(0, file.size, PIECE)]
        messages += [dist.isend(content, rank, tag=TAG) for content in contents]

    def pieces(source: int, size: int) -> Iterator[bytes]:
        for begun in range(0, size, PIECE):
            piece = torch.empty(min(PIECE, size - begun), dtype=torch.uint8, device="cpu")
            dist.recv(piece, source, tag=TAG)
            yield bytes(view_bytes(piece))

    def write(name: str, file: FileDigest, content: Iterator[bytes]) -> None:
        stage = begin()
        stage.filesystem.remove(stage.path / name)  # a hook may have written it on each machine
        stage.write(name, content, file)

    for source in sources:
        (length,) = pieces(source, 8)
        failed, listed = json.loads(b"".join(pieces(source, int.from_bytes(length, "little"))))
        problems += failed
        for name, *digest in listed:
            file = FileDigest(*digest)
            content = pieces(source, file.size)
            problems += problems_of(partial(write, name, file, content))
            deque(content, maxlen=0)  # the sender waits until all has come
    for message in messages:
        message.wait()
    if problems:
        raise CheckpointError(problems[0])


def spread(job: SaveJob, rank: int, first_of: Sequence[int]) -> None:
    """Send the part of this rank to a rank of the next machine, and all but parts from rank 0 to each machine.

    So a machine has the parts of its ranks, those of the machine before, and all else.

    Args:
        job: The part of this rank in a save, which rank 0 has sealed.
        rank: This rank.
        first_of: The first rank of the machine of each rank.

    Raises:
        CheckpointError: What came could not be written.

    Collective:
        Every process must call.
    """
    stage, keepers = job.begin(), keepers_of(first_of)
    parts = list(job.contents.parts.values())

    def to_send() -> dict[int, dict[str, FileDigest]]:
        sent = {keepers[rank]: {names[rank]: stage.files[names[rank]] for names in parts}}
        if rank == 0:
            rest = {
                name: stage.files[name] for name in stage.files.keys() - {part for names in parts for part in names}
            }
            rest[MANIFEST] = FileDigest.of([read_manifest(stage.path).as_bytes()])
            sent |= {first: rest | sent.get(first, {}) for first in receivers}
        return sent

    receivers = {keepers[rank]} if rank else set(first_of) - {0}
    sources = {source for source, keeper in enumerate(keepers) if keeper == rank}
    if rank and rank == first_of[rank]:
        sources.add(0)
    exchange_files(stage.path, receivers, to_send, sources, job.begin)


def keepers_of(first_of: Sequence[int]) -> list[int]:
    """Return the rank of the next machine that keeps the part of each rank.

    Args:
        first_of: The first rank of the machine of each rank.
    """
    sizes = Counter(first_of)
    after = dict(zip(sizes, [*list(sizes)[1:], 0], strict=True))
    return [after[first] + (rank - first) % sizes[after[first]] for rank, first in enumerate(first_of)]
