"""Train the whole model in one process."""

from collections.abc import Sequence
from typing import ClassVar, final

from accel_amp import Precision, PrecisionPolicy
from accel_state import Run
from torch import nn

from accel_parallel.one_process import OneProcess


@final
class SingleProcess(OneProcess):
    """The strategy of one process, which wraps nothing."""

    name: ClassVar[str] = "single"

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return a reason if there are more processes."""
        if run.topology.world_size > 1:
            return [f"it is for one process, and this job has {run.topology.world_size}; use ddp"]
        return []

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Return the model itself.

        Args:
            model: The model.
            run: The current run.
            policy: Dtypes of forwards.
        """
        return model


STRATEGY = SingleProcess
