"""The random numbers with which a rank resumes from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from accel_checkpoint import Manifest, decode
from accel_ops import process_rng
from accel_state import Run
from accel_state.mesh import Axis

from accel.checkpoint.consensus import RankConsensus


@final
class SavedGenerators:
    """The states of generators for a rank, by its place among ranks that train on samples of their own.

    Ranks that divide layers get equal ones, whatever layout was saved: they have to drop out alike.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        run: The run of this process.

    Raises:
        CheckpointError: They are damaged; or as LookupError, TypeError or ValueError.
    """

    def __init__(self, folder: Path, manifest: Manifest, run: Run) -> None:
        self._run, self._saved_by = run, manifest.processes
        mesh = manifest.about.get("mesh", {})
        copies = mesh.get(str(Axis.TENSOR), 1) if isinstance(mesh, dict) else 1
        if type(copies) is not int or copies < 1 or self._saved_by % copies:
            raise ValueError(
                f"the manifest is damaged: it says that {self._saved_by} processes divided layers by {copies}"
            )
        self._saved, self._here = self._saved_by // copies, run.mesh.data_size
        self._place = run.mesh.data_rank(run.topology.rank)
        own = self._place * copies if self._saved == self._here else 0
        self._states: dict[str, Any] = decode(manifest.state_of_rank(folder, own))["generators"]

    @property
    def problems(self) -> list[str]:
        """The generators of this process that the states lack, in words."""
        return process_rng.problems(self._states, self._run.device)

    def restore(self, consensus: RankConsensus) -> None:
        """Restore the generators, or derive them from those of the first rank, and warn of what is new."""
        device = self._run.device
        if process_rng.lacks_device(self._states, device):
            consensus.warn_once(
                f"the checkpoint was not taken on {device.kind}: random numbers of that device begin anew, from the"
                " others'"
            )
        # rank 0 draws the order of samples, as it did
        if self._saved == self._here or self._place == 0:
            process_rng.restore(self._states, device)
        else:
            process_rng.derive(self._states, self._place)
        if self._saved != self._here:
            consensus.warn_once(
                f"the checkpoint was taken by {_processes(self._saved_by, self._saved)}, and is loaded by"
                f" {_processes(self._run.topology.world_size, self._here)}: the first one's random numbers go on,"
                " and those of the others begin anew, from them and the rank"
            )
        elif self._saved_by == self._run.topology.world_size > 2:
            consensus.warn_once(
                "from three processes on DistributedDataParallel adds gradients up in another order in its first step"
                " after a start: training goes on with the same samples, and with sums that are rounded otherwise"
            )


def _processes(count: int, with_samples: int) -> str:
    return f"{count} process{'es' if count != 1 else ''}" + (
        f" ({with_samples} with samples of their own)" if count != with_samples else ""
    )
