"""What an Accelerator passes on to parts of torch: one class for each part."""

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
    """How `torch.autocast` is entered; `keep_outputs` leaves outputs of models in the dtype that they come in."""

    enabled: bool = True
    cache_enabled: bool = True
    keep_outputs: bool = False


@dataclass
class GradScalerKwargs(KwargsHandler):
    """How `torch.amp.GradScaler` changes its scale."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass
class ActivationCheckpointingKwargs(KwargsHandler):
    """Which blocks of models are computed again in the backward, in place of keeping their activations.

    `blocks` are names of classes; None are the blocks of a transformer, or the members of lists of like modules.
    """

    blocks: Sequence[str] | None = None


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """How the process group is opened; `timeout` is how long a process may wait for others, half an hour if None."""

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None

    @property
    def options(self) -> GroupOptions:
        """As accel-state takes them."""
        return GroupOptions(self.backend, self.init_method, self.timeout)

    def problems(self) -> list[str]:
        """A timeout that is none."""
        if self.timeout is None or (isinstance(self.timeout, timedelta) and self.timeout > timedelta(0)):
            return []
        return [
            f"InitProcessGroupKwargs(timeout={self.timeout!r}): expected a timedelta above zero, as in"
            " datetime.timedelta(minutes=10)"
        ]


@dataclass
class ProfileKwargs(KwargsHandler):
    """How `torch.profiler.profile` is entered; each process writes its trace into `output_trace_dir`."""

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
    """At most one of each class."""

    autocast: AutocastKwargs = field(default_factory=AutocastKwargs)
    scaler: GradScalerKwargs = field(default_factory=GradScalerKwargs)
    ddp: DistributedDataParallelKwargs = field(default_factory=DistributedDataParallelKwargs)
    profile: ProfileKwargs = field(default_factory=ProfileKwargs)
    group: InitProcessGroupKwargs = field(default_factory=InitProcessGroupKwargs)
    recomputation: ActivationCheckpointingKwargs | None = None

    @classmethod
    def of(cls, given: Sequence[KwargsHandler] | None) -> Handlers:
        """The handlers, sorted by what they are for.

        Raises: ValueError that lists what is no handler, and what is there twice.
        """
        names = {AutocastKwargs: "autocast", GradScalerKwargs: "scaler"}
        names |= {DistributedDataParallelKwargs: "ddp", ProfileKwargs: "profile", InitProcessGroupKwargs: "group"}
        names |= {ActivationCheckpointingKwargs: "recomputation"}
        problems, handlers = list[str](), dict[str, Any]()
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
