"""The context of local SGD: each process steps by itself, and every so often all take the mean of their parameters."""

from __future__ import annotations

from types import TracebackType
from typing import Self, final

import torch
from torch import nn

from accel.accelerator import Accelerator
from accel.configuration import wrong_number


@final
class LocalSGD:
    """A context in which gradients stay in each process, and models become their mean every so many steps.

    At the end of the block optimizers, schedulers and the loss scale are those of the main process.

    Args:
        accelerator: The Accelerator that has prepared the model.
        model: The prepared model.
        local_sgd_steps: Optimizer steps from one mean of parameters and buffers to the next.
        enabled: False, or a single process, makes it an ordinary loop.

    Raises:
        ValueError: The number of steps is below 1, or the model was not prepared.

    Collective:
        Every process must enter and leave it, and call `step` equally often.

    Source:
        S. U. Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, local_sgd_steps: int, enabled: bool = True) -> None:
        if problems := wrong_number("local_sgd_steps", local_sgd_steps):
            raise ValueError(*problems)
        self.enabled = enabled and accelerator.num_processes > 1
        self.num_steps = 0
        self.local_sgd_steps = local_sgd_steps
        self._accelerator = accelerator
        self._model = model
        self._local = accelerator.local_steps(model)

    def __enter__(self) -> Self:
        if self.enabled:
            self._local.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.enabled:
            return
        self._local.__exit__(kind, error, trace)
        if error is None:  # the others of a process that fails would wait for it in vain, and are ended
            self._take_mean()
            self._share_states()

    def step(self) -> None:
        """Count an optimizer step, and take the mean if it is time. Inside a window nothing happens.

        Collective:
            Every process must call.
        """
        if not self._accelerator.sync_gradients:
            return
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self._take_mean()

    def _share_states(self) -> None:
        """Give all processes the states of the main process: unequal ones would part the models again."""
        transport, main = self._accelerator.run.transport, self._accelerator.is_main_process
        for owner in self._accelerator.stateful:
            state = transport.broadcast_object(owner.state_dict() if main else {}, 0)
            if not main:
                owner.load_state_dict(state)

    @torch.no_grad()
    def _take_mean(self) -> None:
        learned: list[torch.Tensor] = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        learned += [buffer for buffer in self._model.buffers() if buffer.is_floating_point()]
        means = self._accelerator.reduce([tensor.detach() for tensor in learned], "mean")
        for tensor, mean in zip(learned, means, strict=True):
            tensor.copy_(mean)
