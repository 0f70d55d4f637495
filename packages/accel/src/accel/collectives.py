"""The exchange of nested tensors between all processes of a run."""

from __future__ import annotations

from typing import Any, final

from accel_comm import Reduction
from accel_ops import gather, gather_for_metrics, pad_across_processes, reduce
from accel_state import AccumulationState, Run


@final
class CollectiveOps:
    """The calls by which a script gathers, reduces and pads nested tensors.

    Processes that hold parts of the same layers or sequences have the same samples, and count as one. For a program of
    Accelerate, which divides by their number what it gathers, each of them counts in `gather`.

    Args:
        run: The current run.
        accumulation: The window of micro-batches.
        as_accelerate: Whether the program was written for Accelerate.
    """

    def __init__(self, run: Run, accumulation: AccumulationState, *, as_accelerate: bool = False) -> None:
        self._world, self._transport = run.transport, run.data_transport
        self._gathers = self._world if as_accelerate else self._transport
        self._accumulation = accumulation
        self._triggered = False

    def gather(self, tensor: Any) -> Any:
        """Return the nested tensors of all processes, joined along dim 0.

        Collective:
            Every process must call.
        """
        return gather(tensor, self._gathers)

    def gather_for_metrics(self, data: Any, *, use_gather_object: bool = False) -> Any:
        """Return what `gather` does, without the samples that were repeated to fill the last batch of the loader.

        Args:
            data: Nested tensors, or objects that can be pickled.
            use_gather_object: Treat `data` as a list of objects, even if they are tensors.

        Collective:
            Every process must call.
        """
        active = self._accumulation.active
        return gather_for_metrics(data, self._transport, active, use_gather_object=use_gather_object)

    def reduce(self, tensor: Any, how: Reduction = "sum", *, scale: float = 1.0) -> Any:
        """Combine the nested tensors of all processes, element by element.

        Args:
            tensor: Nested tensors, of the same shapes on all processes.
            how: The operation.
            scale: The factor of the result.

        Collective:
            Every process must call.
        """
        return reduce(tensor, self._transport, how=how, scale=scale)

    def pad(self, tensor: Any, *, dim: int = 0, value: float = 0, first: bool = False) -> Any:
        """Return nested tensors that are as long along a dimension as those of the longest process.

        Args:
            tensor: Nested tensors, whose shapes may differ along `dim`.
            dim: The dimension that becomes longer.
            value: The number to fill with.
            first: Fill at the beginning, not at the end.

        Collective:
            Every process must call.
        """
        return pad_across_processes(tensor, self._transport, dim=dim, pad_index=value, pad_first=first)

    def set_trigger(self) -> None:
        """Raise the flag of this process."""
        self._triggered = True

    def check_trigger(self) -> bool:
        """Return True if any process has raised its flag since the last call, and lower all flags.

        Collective:
            Every process must call.
        """
        mine, self._triggered = bytes([self._triggered]), False
        return any(map(any, self._world.agree("check_trigger", part=mine, join=max) or ()))
