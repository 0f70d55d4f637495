"""Verify the files of a checkpoint, which the processes of a job divide among themselves."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import final

import torch
from accel_checkpoint import Manifest, verify
from accel_checkpoint.manifest import MANIFEST
from accel_state import Topology


@final
class SharedVerification:
    """The verification of a checkpoint by all processes: each file once for each disk.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        here: This process.
        keep: Files whose tensors are kept in `tensors` if this process reads them.
        own_parts: Whether each process verifies the parts of its rank, which it will read.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, here: Topology, *, keep: Collection[str], own_parts: bool
    ) -> None:
        self._folder, self._manifest, self._here, self._keep = folder, manifest, here, keep
        self.tensors: dict[str, dict[str, torch.Tensor]] = {}
        parts = [names for names in manifest.parts.values() if own_parts and len(names) == here.world_size]
        self._reader = {part: rank for names in parts for rank, part in enumerate(names)}
        self._others = sorted(manifest.files.keys() - self._reader.keys(), key=self._largest_first)

    @property
    def disk(self) -> list[int]:
        """The identity of the manifest on its disk, the same on all machines that share the disk."""
        found = os.stat(self._folder / MANIFEST)
        return [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]

    def verify(self) -> list[str]:
        """Verify the share of this process among those of the job, and return the problems."""
        return self._read(self._share(self._here.rank))

    def verify_rest(self) -> list[str]:
        """Verify the share of this process in what no process of its machine has verified, if its disk is its own."""
        first, count = self._here.rank - self._here.local_rank, self._here.local_world_size
        done = {name for rank in range(first, first + count) for name in self._share(rank)}
        rest = sorted(self._manifest.files.keys() - done, key=self._largest_first)
        return self._read(rest[self._here.local_rank :: count])

    def _share(self, rank: int) -> list[str]:
        own = [part for part, reader in self._reader.items() if reader == rank]
        return [*own, *self._others[rank :: self._here.world_size]]

    def _read(self, names: list[str]) -> list[str]:
        result = verify(self._folder, self._manifest, names, keep=self._keep)
        self.tensors |= result.tensors
        return result.problems

    def _largest_first(self, name: str) -> tuple[int, str]:
        return -self._manifest.files[name].size, name
