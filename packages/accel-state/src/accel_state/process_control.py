"""Let some processes work, or wait for them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from accel_state.callable_bool import CallableBool
from accel_state.distributed_type import DistributedType
from accel_state.run import Run
from accel_state.split_inputs import split

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")


class ProcessControl(ABC):
    """The rank of this process, and its waits for the others."""

    @property
    @abstractmethod
    def run(self) -> Run:
        """The run that this process belongs to."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.run.placed_on

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of device of several processes, such as "MULTI_CPU", or "NO" for one process."""
        return self.run.distributed_type

    @property
    def num_processes(self) -> int:
        """The number of processes of the job."""
        return self.run.topology.world_size

    @property
    def process_index(self) -> int:
        """The rank of this process among all."""
        return self.run.topology.rank

    @property
    def local_process_index(self) -> int:
        """The rank of this process on its machine."""
        return self.run.topology.local_rank

    @property
    def use_distributed(self) -> bool:
        """True if the job has several processes."""
        return self.num_processes > 1

    @property
    def is_main_process(self) -> CallableBool:
        """True on one process of the job. It may also be called."""
        return CallableBool(self.process_index == 0)

    @property
    def is_local_main_process(self) -> CallableBool:
        """True on one process of each machine. It may also be called."""
        return CallableBool(self.local_process_index == 0)

    @property
    def is_last_process(self) -> CallableBool:
        """True on the process with the highest rank. It may also be called."""
        return CallableBool(self.process_index == self.num_processes - 1)

    def wait_for_everyone(self) -> None:
        """Wait until every process has called.

        Collective:
            Every process must call.
        """
        self.run.transport.barrier()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once a machine, as the built-in `print` does."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Yield the contiguous piece of a collection that this process works on.

        Args:
            inputs: A list, tuple, tensor, mapping of them, or Dataset.
            apply_padding: Whether to repeat the last item until all pieces have one length.
        """
        yield split(inputs, self.process_index, self.num_processes, padding=apply_padding)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process run the block before the others, who wait as long as it lives.

        Raises:
            PeerFailed: On the others, if the main process fails or ends in the block.

        Collective:
            Every process must enter.
        """
        with self.run.store.ordered_section(0):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the main process of each machine run the block before the others there, who wait as long as it lives.

        Raises:
            PeerFailed: On the others of a machine, if its main process fails or ends in the block.

        Collective:
            Every process must enter.
        """
        with self.run.store.ordered_section(self.process_index - self.local_process_index):
            yield

    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that calls `function` on one process of the job, and returns None elsewhere."""
        return _only(lambda: bool(self.is_main_process), function)

    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that calls `function` on one process of each machine, and returns None elsewhere."""
        return _only(lambda: bool(self.is_local_main_process), function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that calls `function` on the process with the highest rank, and returns None elsewhere."""
        return _only(lambda: bool(self.is_last_process), function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Return a function that calls `function` on one process, and returns None elsewhere.

        Args:
            function: The function; without it, a decorator is returned.
            process_index: Rank of the process, 0 by default.
        """
        wanted = process_index or 0
        return _decorator(lambda: self.process_index == wanted, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Return a function that calls `function` on one process of each machine, and returns None elsewhere.

        Args:
            function: The function; without it, a decorator is returned.
            local_process_index: Rank of the process on its machine, 0 by default.
        """
        wanted = local_process_index or 0
        return _decorator(lambda: self.local_process_index == wanted, function)


def _decorator(chosen: Callable[[], bool], function: Callable[..., Any] | None) -> Any:
    return functools.partial(_only, chosen) if function is None else _only(chosen, function)


def _only(chosen: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if chosen() else None

    return guarded
