"""Shard optimizer states, gradients and parameters by DeepSpeed's engine (ZeRO)."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import ClassVar, Self, final

import torch.distributed as dist
from accel_amp import Precision, PrecisionPolicy
from accel_parallel import Asked, Strategy
from accel_parallel.empty_weights import make_equal
from accel_state import AccumulationState, Run
from accel_state.environ import process_environ, set_default
from torch import nn
from torch._C._distributed_c10d import HashStore

from accel_deepspeed.engine import DeepSpeedSteps
from accel_deepspeed.plugin import DeepSpeedPlugin

#: what DeepSpeed reads, and takes a guess if it is not there
DEVICE, LOCAL_RANK = "DS_ACCELERATOR", "LOCAL_RANK"
_NOTHING = nullcontext()


@final
class DeepSpeed(Strategy):
    """The strategy that puts a model and its optimizer into an engine of DeepSpeed.

    Forwards compute under autocast as with other strategies. In fp16 DeepSpeed scales the loss and skips steps.

    Args:
        plugin: Options of DeepSpeed.
        accumulation_steps: Micro-batches for each step.
        split_batches: Whether a loader's batch is for all processes together.
    """

    name: ClassVar[str] = "deepspeed"
    steps: DeepSpeedSteps
    options_type: ClassVar[type | None] = DeepSpeedPlugin

    def __init__(
        self, plugin: DeepSpeedPlugin | None = None, *, accumulation_steps: int = 1, split_batches: bool = False
    ) -> None:
        self.steps = DeepSpeedSteps(
            plugin or DeepSpeedPlugin(), accumulation_steps=accumulation_steps, split_batches=split_batches
        )

    @classmethod
    def made(cls, options: DeepSpeedPlugin | None, asked: Asked) -> Self:
        """Return the strategy with its plugin, and the length of windows."""
        return cls(options, accumulation_steps=asked.accumulation_steps or 1, split_batches=asked.split_batches)

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return why DeepSpeed cannot run: it is absent, is set to another device, or does not know the device."""
        if find_spec("deepspeed") is None:
            return ["DeepSpeed is not installed: pip install deepspeed"]
        kind = run.placed_on.type
        if kind in ("xla", "mps"):
            return [f"DeepSpeed does not run on {kind}"]
        asked = process_environ().get(DEVICE, kind)
        if asked != kind:
            return [f"{DEVICE}={asked!r} in the environment, and the run is on {kind}; unset the variable"]
        if run.topology.world_size > 1 and not dist.is_initialized():
            return ["DeepSpeed needs torch's process group"]
        return []

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Put a model into DeepSpeed's engine. One without trainable parameters is made equal on all ranks.

        Args:
            model: Model to train.
            run: The current run.
            policy: Dtypes of forwards.

        Returns:
            The engine, or the model without trainable parameters.

        Raises:
            ValueError: The model comes without its optimizer, or contradicts DeepSpeed's config.

        Collective:
            Every rank must call.
        """
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return make_equal(model, run.transport)
        # DeepSpeed reads them when it is imported, and when it makes an engine
        set_default(DEVICE, run.placed_on.type)
        set_default(LOCAL_RANK, str(run.topology.local_rank))
        if not dist.is_initialized():
            _open_group_of_one(run)
        return self.steps.start(model, run, policy)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model inside the engine."""
        deepspeed = sys.modules.get("deepspeed")  # no model is in an engine as long as nobody has imported it
        if deepspeed is None or not isinstance(model, deepspeed.DeepSpeedEngine):
            return model
        inner: nn.Module = model.module
        return inner

    @contextmanager
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> Iterator[None]:
        """Raise, as each backward of the engine is one of all ranks.

        Raises:
            ValueError: A model is in an engine.
        """
        if any(self.unwrap(model) is not model for model in models):
            raise ValueError(
                "join_uneven_inputs with DeepSpeed: each backward needs all ranks, so all need equally many batches;"
                " use even_batches=True, or ending='drop'"
            )
        yield

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Do nothing, as each backward tells the engine if the window ends."""
        return _NOTHING

    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Do nothing, as the engine reduces gradients in its backward."""
        return _NOTHING


def _open_group_of_one(run: Run) -> None:
    """Open a process group of this process alone, as DeepSpeed's engine asks for one."""
    backend = "nccl" if run.placed_on.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


STRATEGY = DeepSpeed
