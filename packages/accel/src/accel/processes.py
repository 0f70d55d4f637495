"""The processes of an Accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from accel_state import ProcessControl, Run
from accel_state.mesh import Axis


@final
@dataclass(frozen=True, slots=True)
class Processes(ProcessControl):
    """The processes of one run, as this process sees them."""

    run: Run
    #: whether somebody has asked for an arrangement of them
    arranged: bool = False

    def rank_on(self, axis: Axis) -> int:
        """Return the position of this process along an axis of the mesh.

        Raises:
            RuntimeError: Nobody has asked for an arrangement of the processes.
        """
        if not self.arranged:
            raise RuntimeError(
                f"the rank on {axis} was asked for, and this Accelerator has no ParallelismConfig; pass"
                " parallelism_config=ParallelismConfig(...), or use process_index"
            )
        return self.run.mesh.coordinate(self.process_index)[axis]
