"""Compare the parameters that ranks of a sharded model have used in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from accel_comm import AccelError, Transport
from torch import nn
from torch.optim import Optimizer

from accel_parallel.invariants import unlike_lists


class UnlikeParameters(AccelError, RuntimeError):
    """An error of ranks that have used different parameters of a sharded model, whose gradients torch has mixed up."""


@final
class UnusedParameterCheck:
    """A check that refuses a step if ranks have gradients of different parameters.

    torch adds up what comes at the same position. Ranks exchange something only if some parameters have no gradient. If
    they lack on one rank and not on another, the gradients of a block have unlike sizes, and torch fails in the
    backward.

    Args:
        parameters: Sharded parameters by name.
        transport: Transport of the ranks.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], transport: Transport) -> None:
        self._parameters, self._transport = dict(parameters), transport
        call_before_steps(self.compare)

    def compare(self, optimizer: Optimizer) -> None:
        """Compare what ranks lack of the parameters of an optimizer.

        Raises:
            UnlikeParameters: Ranks lack different ones. It is raised on all ranks.

        Collective:
            Every rank must call.
        """
        held = set(map(id, parameters_of(optimizer)))
        mine = {name: parameter for name, parameter in self._parameters.items() if id(parameter) in held}
        lacking = [name for name, parameter in mine.items() if parameter.requires_grad and parameter.grad is None]
        if not lacking or len(lacking) == len(mine):
            return
        ranks = [
            f"rank {rank} lacks gradients of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
            for rank, names in enumerate(unlike_lists(self._transport, "parameters that a step has used", lacking))
        ]
        if ranks:
            raise UnlikeParameters(
                "ranks of a sharded model have used different parameters, such as experts, and torch has mixed up their"
                f" gradients: {'; '.join(ranks[:4])}. Say FullyShardedDataParallelPlugin(find_unused_parameters=True)"
            )
