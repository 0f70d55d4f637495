"""The options that an Accelerator passes on to parts of torch: one class for each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from accel_comm import GroupOptions
from accel_parallel import DistributedDataParallelKwargs as DistributedDataParallelKwargs
from accel_parallel.ddp_options import KwargsHandler as KwargsHandler


@dataclass
class AutocastKwargs(KwargsHandler):
    """The options of `torch.autocast`.

    Args:
        enabled: Compute in the precision of the run; False computes in float32.
        cache_enabled: Keep weights that were cast, for the next operation.
        keep_outputs: Leave outputs of models in the dtype that they come in; otherwise they become float32.
    """

    enabled: bool = True
    cache_enabled: bool = True
    keep_outputs: bool = False


@dataclass
class GradScalerKwargs(KwargsHandler):
    """The options of the loss scaler, which are those of `torch.amp.GradScaler`.

    Args:
        init_scale: The scale to start with.
        growth_factor: The factor by which the scale grows.
        backoff_factor: The factor by which it shrinks after a step whose gradients have overflowed.
        growth_interval: How many steps without an overflow come before it grows.
        enabled: False is refused in fp16: small gradients would become zero.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass
class ActivationCheckpointingKwargs(KwargsHandler):
    """The blocks of models that are computed again in the backward, in place of keeping their activations.

    Args:
        blocks: Names of classes; None for the blocks of a transformer, or the members of lists of like modules.
    """

    blocks: Sequence[str] | None = None


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """The options of the process group.

    Args:
        backend: The backend of `torch.distributed`; None for that of the device.
        init_method: The address at which the processes meet; None for that of the launcher.
        timeout: How long a process may wait for others; None for half an hour.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None

    @property
    def options(self) -> GroupOptions:
        """The same options, as accel-state takes them."""
        return GroupOptions(self.backend, self.init_method, self.timeout)

    def problems(self) -> list[str]:
        """Return what is wrong with the timeout."""
        if self.timeout is None or (isinstance(self.timeout, timedelta) and self.timeout > timedelta(0)):
            return []
        return [
            f"InitProcessGroupKwargs(timeout={self.timeout!r}): expected a timedelta above zero, as in"
            " datetime.timedelta(minutes=10)"
        ]


@dataclass
class ProfileKwargs(KwargsHandler):
    """The options of `torch.profiler.profile`.

    Args:
        activities: "cpu", "cuda" and so on; None for all that are there.
        schedule_option: Arguments of `torch.profiler.schedule`, which says which steps are recorded.
        on_trace_ready: A function that is called with the profiler when a trace is ready.
        record_shapes: Record the shapes of inputs.
        profile_memory: Record allocations of memory.
        with_stack: Record source lines.
        with_flops: Estimate operations per second.
        with_modules: Record the names of modules.
        output_trace_dir: The folder into which each process writes its trace.
    """

    activities: Sequence[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[[Any], Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | Path | None = None


@dataclass(frozen=True, slots=True)
class Handlers:
    """The options of all parts, sorted: at most one object of each class.

    Args:
        autocast: Those of `torch.autocast`.
        scaler: Those of the loss scaler.
        ddp: Those of `DistributedDataParallel`.
        profile: Those of `torch.profiler`.
        group: Those of the process group.
        recomputation: The blocks to compute again; None for none.
    """

    autocast: AutocastKwargs = field(default_factory=AutocastKwargs)
    scaler: GradScalerKwargs = field(default_factory=GradScalerKwargs)
    ddp: DistributedDataParallelKwargs = field(default_factory=DistributedDataParallelKwargs)
    profile: ProfileKwargs = field(default_factory=ProfileKwargs)
    group: InitProcessGroupKwargs = field(default_factory=InitProcessGroupKwargs)
    recomputation: ActivationCheckpointingKwargs | None = None

    @classmethod
    def of(cls, given: Sequence[KwargsHandler] | None) -> Handlers:
        """Return a list of options, sorted by what they are for.

        Raises:
            ValueError: It lists what is no handler, and what is there twice.
        """
        names = {AutocastKwargs: "autocast", GradScalerKwargs: "scaler"}
        names |= {DistributedDataParallelKwargs: "ddp", ProfileKwargs: "profile", InitProcessGroupKwargs: "group"}
        names |= {ActivationCheckpointingKwargs: "recomputation"}
        problems: list[str] = []
        handlers: dict[str, Any] = {}
        if isinstance(given, KwargsHandler):
            raise ValueError(f"kwargs_handlers is a {type(given).__name__}: expected a list of handlers")
        for handler in given or ():
            name = names.get(type(handler))
            if name is None:
                known = ", ".join(kind.__name__ for kind in names)
                problems.append(f"kwargs_handlers has a {type(handler).__name__}: expected some of {known}")
            elif name in handlers:
                problems.append(f"kwargs_handlers has two of {type(handler).__name__}: give one")
            else:
                handlers[name] = handler
                problems += handler.problems()
        if problems:
            raise ValueError("; ".join(problems))
        return cls(**handlers)
