"""A strategy of one's own: each gradient is averaged by itself, in the dtype that its options name.

python -m pip install ./docs/examples/own_strategy
Accelerator(strategy="averaging", strategy_options=AveragingOptions("bfloat16"))
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, final

import torch
from accel_amp import Precision, PrecisionPolicy
from accel_comm import Transport
from accel_parallel import Asked, Strategy, TorchSteps
from accel_parallel.empty_weights import make_equal
from accel_state import AccumulationState, Run
from torch import nn


@dataclass(frozen=True)
class AveragingOptions:
    """The dtype in which gradients travel, by the name that torch has for it."""

    dtype: str = "float32"


@final
class Averaging(Strategy):
    """Leaves models as they are, and averages each gradient as soon as a backward has made it."""

    name: ClassVar[str] = "averaging"
    options_type: ClassVar[type | None] = AveragingOptions

    def __init__(self, options: AveragingOptions | None = None) -> None:
        self.options = options or AveragingOptions()
        self.steps = TorchSteps()
        self._travels = True

    @classmethod
    def made(cls, options: AveragingOptions | None, asked: Asked) -> Self:
        """Return the strategy for the `strategy_options` of the script, or for none."""
        return cls(options)

    def check(self, run: Run, precision: Precision) -> Sequence[str]:
        """Return why it cannot run: everything that is wrong, in words."""
        if isinstance(getattr(torch, self.options.dtype, None), torch.dtype):
            return []
        return [f"AveragingOptions(dtype={self.options.dtype!r}): expected a dtype of torch, such as 'bfloat16'"]

    def setup(self, model: nn.Module, run: Run, policy: PrecisionPolicy) -> nn.Module:
        """Return the model with the weights of rank 0. A strategy may return a container of it instead."""
        make_equal(model, run.transport)
        for parameter in model.parameters():
            if parameter.requires_grad:
                hook = partial(self._average, run.transport)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call] # of torch
        return model

    def _average(self, transport: Transport, parameter: torch.Tensor) -> None:
        if self._travels and parameter.grad is not None:
            sent = parameter.grad.to(getattr(torch, self.options.dtype))
            parameter.grad.copy_(transport.all_reduce(sent, "mean"))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model that `setup` was given."""
        return model

    @contextmanager
    def synchronising(self, model: nn.Module, *, enabled: bool) -> Iterator[None]:
        """Let gradients travel in the block, or stay: within a window they gather, and its last backward sends all."""
        before, self._travels = self._travels, enabled
        try:
            yield
        finally:
            self._travels = before

    def synchronising_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Let gradients travel, although the forward was under `no_sync`."""
        return self.synchronising(model, enabled=True)

    def joining(self, models: Iterable[nn.Module], windows: AccumulationState | None) -> AbstractContextManager[None]:
        """Refuse unequal numbers of batches."""
        raise ValueError("join_uneven_inputs: each gradient needs all ranks; use even_batches=True, or ending='drop'")
