"""Compare the parameters that ranks of a sharded model have used in a backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, final
from weakref import WeakKeyDictionary

import torch
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from accel_comm import AccelError, Transport
from accel_comm.hang_diagnosis import COMPARED
from torch import nn
from torch.optim import Optimizer

from accel_parallel.invariants import unlike_lists
from accel_parallel.sharded.parameter_groups import divided_parameters, parameter_groups

#: kinds of backwards whose parameters are remembered
KEPT = 8


class UnlikeParameters(AccelError, RuntimeError):
    """An error of ranks that have used different parameters of a sharded model, whose gradients torch has mixed up."""


@final
class UnusedParameterCheck:
    """A check that refuses a backward in which ranks have used different parameters.

    torch adds up what comes at the same position, and a device waits for what another rank does not send. Ranks
    exchange something only if a backward uses other parameters than the newest of its kind: the first of a window, and
    those to which the backwards before have left the same gradients. If only some ranks do, these wait for the others,
    which the watchdog tells. gloo may fail earlier, in the backward. A backward that accel has not made is looked at
    before the step.

    Args:
        model: The sharded model.
        transport: Transport of the ranks.
    """

    def __init__(self, model: nn.Module, transport: Transport) -> None:
        self._model, self._transport, self._groups = model, transport, parameter_groups(model)
        #: what the newest backward of each kind has used, alike on all ranks
        self._agreed: dict[tuple[object, ...], list[bool]] = {}
        #: how many backwards were compared, also when an optimizer took its newest step
        self._compared = 0
        self._seen: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        call_before_steps(self._look)

    def marks(self) -> list[torch.Tensor | None]:
        """Return for each parameter its gradient, whose version a backward that uses the parameter makes larger."""
        gradients: list[Any] = [parameter.grad for parameter in divided_parameters(self._groups)]
        for gradient in gradients:
            if gradient is not None:
                # torch keeps the gradients of a block in one memory, with one version: each gets its own
                gradient._local_tensor = gradient._local_tensor.data
        return [None if gradient is None else gradient._local_tensor for gradient in gradients]

    def compare(self, before: Sequence[torch.Tensor | None]) -> None:
        """Compare what ranks have used since the marks before a backward.

        Raises:
            UnlikeParameters: Ranks have used different parameters. It is raised on all ranks.

        Collective:
            Every rank must call.
        """
        self._compared += 1
        gradients: list[Any] = [parameter.grad for parameter in divided_parameters(self._groups)]
        used = [
            gradient is not None and (gradient._local_tensor is not old or old._version > 0)
            for gradient, old in zip(gradients, before, strict=True)
        ]
        self._agree(tuple(old is None for old in before), used)

    def _look(self, optimizer: Optimizer) -> None:
        """Compare what an optimizer has gradients of, if no backward was compared since its last step."""
        if self._seen.get(optimizer, 0) != self._compared:
            self._seen[optimizer] = self._compared
            return
        held, parameters = set(map(id, parameters_of(optimizer))), divided_parameters(self._groups)
        mine = [id(parameter) in held for parameter in parameters]
        if any(mine):  # an optimizer of another model may step on one rank alone
            used = [own and parameter.grad is not None for own, parameter in zip(mine, parameters, strict=True)]
            self._agree(("step", *mine), used)

    def _agree(self, kind: tuple[object, ...], used: list[bool]) -> None:
        # the loss of another model
        if not any(used) or self._agreed.get(kind) == used:
            self._transport.skip(COMPARED)
            return
        self._agreed.pop(kind, None)
        found = unlike_lists(self._transport, COMPARED, [str(int(one)) for one in used])
        if found:
            self._refuse(found)
        self._agreed[kind] = used
        if len(self._agreed) > KEPT:
            del self._agreed[next(iter(self._agreed))]

    def _refuse(self, found: Sequence[Sequence[str]]) -> NoReturn:
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        ordered = [names.get(id(parameter), "a parameter") for parameter in divided_parameters(self._groups)]
        most = [max(marks) for marks in zip(*found, strict=True)]
        lacks = [
            [name for name, mark, all_ in zip(ordered, marks, most, strict=True) if mark < all_] for marks in found
        ]
        ranks = [
            f"rank {rank} lacks gradients of {', '.join(lacking[:3])}{' and others' if len(lacking) > 3 else ''}"
            for rank, lacking in enumerate(lacks)
            if lacking
        ]
        raise UnlikeParameters(
            "ranks of a sharded model have used different parameters, such as experts, and torch has mixed up their"
            f" gradients: {'; '.join(ranks[:4])}. Say FullyShardedDataParallelPlugin(find_unused_parameters=True)"
        )
