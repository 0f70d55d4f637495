"""DeepSpeed's engine spreads optimizer states, gradients and parameters (ZeRO)."""

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
    """Puts the model and its optimizer into an engine of DeepSpeed, by the plugin's options and DeepSpeed's config.

    Forwards compute under autocast as with other strategies; in fp16 DeepSpeed scales the loss and skips steps.
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
        """A reason if DeepSpeed is not installed, has imported for another device, or knows the device not."""
        if find_spec("deepspeed") is None:
            return ["DeepSpeed is not installed: pip install 'accel[deepspeed]'"]
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
        """The model in DeepSpeed's engine; a model without trainable parameters as it is, made equal on all ranks.

        Raises: ValueError for a model without its optimizer, and all that DeepSpeed's config contradicts.
        Collective: every rank must call.
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
        """The model inside the engine."""
        deepspeed = sys.modules.get("deepspeed")  # no model is in an engine as long as nobody has imported it
        if deepspeed is None or not isinstance(model, deepspeed.DeepSpeedEngine):
            return model
        inner: nn.Module = model.module
        return inner

    @contextmanager
    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> Iterator[None]:
        """Nothing: refused.

        Raises: ValueError, as each backward of the engine is one of all ranks.
        """
        if any(self.unwrap(model) is not model for model in models):
            raise ValueError(
                "join_uneven_inputs with DeepSpeed: each backward needs all ranks, so all need equally many batches;"
                " use even_batches=True, or ending='drop'"
            )
        yield

    def synchronising(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Does nothing: the engine is told in each backward if the window ends."""
        return _NOTHING

    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Does nothing: the engine reduces gradients in its backward."""
        return _NOTHING


def _open_group_of_one(run: Run) -> None:
    """Opens a process group of this process alone: DeepSpeed's engine asks for one."""
    backend = "nccl" if run.placed_on.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


STRATEGY = DeepSpeed
