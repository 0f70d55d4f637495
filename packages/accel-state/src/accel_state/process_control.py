"""Work of some processes only, and waits for it: shared by the facade and the state views."""

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
    """The rank of this process, and its turns with the others."""

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
        """The kind of set-up."""
        return self.run.distributed_type

    @property
    def num_processes(self) -> int:
        """How many processes the job has."""
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
        """Whether the job has several processes."""
        return self.num_processes > 1

    @property
    def is_main_process(self) -> CallableBool:
        """True on one process of the job; may also be called."""
        return CallableBool(self.process_index == 0)

    @property
    def is_local_main_process(self) -> CallableBool:
        """True on one process of each machine; may also be called."""
        return CallableBool(self.local_process_index == 0)

    @property
    def is_last_process(self) -> CallableBool:
        """True on the process with the highest rank; may also be called."""
        return CallableBool(self.process_index == self.num_processes - 1)

    def wait_for_everyone(self) -> None:
        """Returns when every process has called; at once in a single process.

        Collective: every process must call.
        """
        self.run.transport.barrier()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once a machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's contiguous piece of `inputs`, a Dataset included; with padding all are equally long."""
        yield split(inputs, self.process_index, self.num_processes, padding=apply_padding)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Lets the main process run the block before the others, who wait as long as it lives.

        Raises: PeerFailed on the others when the main process fails or ends in the block.
        Collective: every process must enter.
        """
        with self.run.transport.store.ordered_section(0):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Lets the main process of each machine run the block before the others there, who wait as long as it lives.

        Raises: PeerFailed on the others of a machine when its main process fails or ends in the block.
        Collective: every process must enter.
        """
        with self.run.transport.store.ordered_section(self.process_index - self.local_process_index):
            yield

    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """`function`, called on one process of the job; None elsewhere."""
        return _only(lambda: bool(self.is_main_process), function)

    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """`function`, called on one process of each machine; None elsewhere."""
        return _only(lambda: bool(self.is_local_main_process), function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """`function`, called on the process with the highest rank; None elsewhere."""
        return _only(lambda: bool(self.is_last_process), function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """`function`, called on the process with this rank; None elsewhere."""
        wanted = process_index or 0
        return _decorator(lambda: self.process_index == wanted, function)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """`function`, called on the process with this rank on its machine; None elsewhere."""
        wanted = local_process_index or 0
        return _decorator(lambda: self.local_process_index == wanted, function)


def _decorator(chosen: Callable[[], bool], function: Callable[..., Any] | None) -> Any:
    return functools.partial(_only, chosen) if function is None else _only(chosen, function)


def _only(chosen: Callable[[], bool], function: Callable[P, R]) -> Callable[P, R | None]:
    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if chosen() else None

    return guarded
