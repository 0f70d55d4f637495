"""Who a process is, and what it exchanges with the others for the script."""

from __future__ import annotations

from typing import Any

from accel_comm import Reduction
from accel_ops import gather, gather_for_metrics, pad_across_processes, reduce
from accel_parallel import ParallelismConfig
from accel_state import AcceleratorState, ProcessControl, Run
from accel_state.mesh import Axis
from torch.distributed.device_mesh import DeviceMesh

from accel.build import Components
from accel.settings import Settings


class CollectiveOps(ProcessControl):
    """Gathers, reduces and pads nested tensors over all processes of the run.

    Processes that hold parts of the same layers have the same samples, and count as one.
    """

    settings: Settings
    components: Components
    _triggered = False

    @property
    def run(self) -> Run:
        """What is settled for this process; shared with every other Accelerator."""
        return self.components.run

    @property
    def state(self) -> AcceleratorState:
        """The view of the run that every Accelerator shares."""
        return AcceleratorState()

    @property
    def mixed_precision(self) -> str:
        """The name of the precision."""
        return self.components.precision.name

    @property
    def is_fsdp2(self) -> bool:
        """Whether parameters are sharded by torch's fully_shard."""
        return self.components.strategy.is_fsdp2

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """The sizes that the script or its launcher asks for; None if neither does."""
        return self.settings.parallelism

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """torch's mesh of the processes; None if nothing is sharded or divided."""
        return self.run.device_mesh

    @property
    def data_parallel_rank(self) -> int:
        """The place of this process among whole copies of the model, each of which may be sharded.

        Raises: RuntimeError without a ParallelismConfig.
        """
        return self._place_on(Axis.REPLICATE)

    @property
    def data_parallel_shard_rank(self) -> int:
        """The place of this process among those that share one copy.

        Raises: RuntimeError without a ParallelismConfig.
        """
        return self._place_on(Axis.SHARD)

    @property
    def tensor_parallel_rank(self) -> int:
        """The place of this process among those that divide each layer.

        Raises: RuntimeError without a ParallelismConfig.
        """
        return self._place_on(Axis.TENSOR)

    def _place_on(self, axis: Axis) -> int:
        if self.settings.parallelism is None:
            raise RuntimeError(
                f"the rank on {axis} was asked for, and this Accelerator has no ParallelismConfig; pass"
                " parallelism_config=ParallelismConfig(...), or use process_index"
            )
        return self.run.mesh.coordinate(self.process_index)[axis]

    def gather(self, tensor: Any) -> Any:
        """Nested tensors of all processes, joined along dim 0. Collective."""
        return gather(tensor, self.components.run.data_transport)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What `gather` returns, less the samples that were repeated to fill the loader's last batch. Collective."""
        active = self.components.accumulation.active
        return gather_for_metrics(
            input_data, self.components.run.data_transport, active, use_gather_object=use_gather_object
        )

    def reduce(self, tensor: Any, reduction: Reduction = "sum", scale: float = 1.0) -> Any:
        """Nested tensors of all processes, combined element by element. Collective."""
        return reduce(tensor, self.components.run.data_transport, how=reduction, scale=scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Nested tensors as long along `dim` as the longest process's. Collective."""
        return pad_across_processes(
            tensor, self.components.run.data_transport, dim=dim, pad_index=pad_index, pad_first=pad_first
        )

    def set_trigger(self) -> None:
        """Raises a flag, for `check_trigger` to see on every process."""
        self._triggered = True

    def check_trigger(self) -> bool:
        """Whether any process has raised its flag since the last call; all flags are lowered. Collective."""
        mine, self._triggered = bytes([self._triggered]), False
        return any(map(any, self.components.run.transport.agree("check_trigger", part=mine, join=max) or ()))
