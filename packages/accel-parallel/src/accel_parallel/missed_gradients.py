"""Exchange gradients that no exchange of a model covers, at the end of their backward."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from accel_amp import AcceleratedOptimizer
from accel_state import Run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_parallel.forwarding_container import ForwardingContainer
from accel_parallel.hooks_afterwards import hooks_afterwards
from accel_parallel.invariants import SHOWN, parameter_ids, unlike_lists
from accel_parallel.rank_zero_source import send_tensors
from accel_parallel.replicated_gradients import average_gradients
from accel_parallel.steps_without_loss import StepsWithoutLoss

#: of the prepared models and of the parameters that optimizers hold, those that no exchange covers
Late = Callable[[Sequence[nn.Module], Sequence[torch.Tensor]], list[torch.Tensor]]


@final
class MissedGradients:
    """The exchange of what the exchange of a model misses: late parameters, and second backwards of a forward.

    Late are parameters of optimizers that came after `prepare`, or are in no prepared model. A container of
    DistributedDataParallel exchanges the gradients of the first backward after a forward. The mean of a sum is the sum
    of means, so after another backward all of them are averaged once more. The cost is one look at each parameter of an
    optimizer, and nothing is exchanged unless something is late.

    Args:
        run: The current run.
        groups: Groups of ranks to average over.
        everywhere: Groups of ranks that hold the same parameters.
        late: Function that returns which parameters are late.
    """

    def __init__(
        self, run: Run, groups: Sequence[dist.ProcessGroup], everywhere: Sequence[dist.ProcessGroup], late: Late
    ) -> None:
        self._run, self._groups, self._everywhere, self._late = run, groups, everywhere, late
        self._adopted: dict[int, weakref.ref[torch.Tensor]] = {}
        #: losses that came, also those whose gradients stayed at home
        self.losses = 0
        self._steps = StepsWithoutLoss(self, run.transport)

    def adopt(
        self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor], *, used: bool = False
    ) -> list[torch.Tensor]:
        """Give all ranks the values of rank 0 for those parameters that are late, once.

        Args:
            models: Prepared models.
            parameters: Parameters of optimizers.
            used: Whether a forward has used them, so that their values must be equal already.

        Returns:
            The late parameters.

        Raises:
            ValueError: Ranks have unlike late parameters, or unlike values that a forward used. It is raised on every
                rank.

        Collective:
            Every rank must call with like parameters.
        """
        self._steps.begin(models)
        late = self._late(models, parameters)
        new = self.strange(late)
        if new:
            self._agree(new)
            if used:
                self._agree_on_numbers(new)
            send_tensors([parameter.detach() for parameter in new], self._everywhere, self._run.placed_on)
            self._adopted.update((id(parameter), weakref.ref(parameter)) for parameter in new)
        return late

    def strange(self, late: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of late parameters that were not made equal yet."""
        return [parameter for parameter in late if self._adopted.get(id(parameter), _nothing)() is not parameter]

    def late_of(self, models: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of the parameters that are in the models, and that no exchange covers."""
        inside = parameter_ids(models)
        return self._late(models, [parameter for parameter in parameters if id(parameter) in inside])

    def backward(
        self, loss: torch.Tensor, models: Sequence[nn.Module], optimizers: Sequence[AcceleratedOptimizer], **kwargs: Any
    ) -> None:
        """Call the backward of a loss when a step is due, and average what nothing else exchanges.

        Args:
            loss: The loss.
            models: Prepared models.
            optimizers: Prepared optimizers.
            kwargs: Arguments of torch's `backward`.

        Raises:
            ValueError: Something is late while ranks may have unequal numbers of batches, or `inputs` is given.

        Collective:
            Every rank must call.
        """
        watched: list[ForwardingContainer] = []
        sends = stays = False
        for model in models:  # written out, as each step is looked at
            if type(model) is ForwardingContainer or isinstance(model, DistributedDataParallel):
                if not model.require_backward_grad_sync:
                    stays = True
                    continue
                sends = True
                if type(model) is ForwardingContainer:
                    watched.append(model)
        if stays and not sends:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call] # of torch
            return
        if sends and "inputs" in kwargs:
            raise ValueError(
                "backward(inputs=...) with DistributedDataParallel: torch waits for the gradients of all parameters;"
                " freeze the others instead, with requires_grad_(False), before the forward"
            )
        hooked: list[torch.Tensor] = []
        for container in watched:
            hooked += container.hooked()
        if hooked:
            with hooks_afterwards(hooked):
                self._exchange(loss, models, optimizers, watched, **kwargs)
        else:
            self._exchange(loss, models, optimizers, watched, **kwargs)

    def _exchange(
        self,
        loss: torch.Tensor,
        models: Sequence[nn.Module],
        optimizers: Sequence[AcceleratedOptimizer],
        watched: Sequence[ForwardingContainer],
        **kwargs: Any,
    ) -> None:
        missed: list[torch.Tensor] = []
        if len(watched) == 1 and watched[0].expects:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call] # of torch
            watched[0].take_backward()
        else:  # of several, those expect nothing that it has gone through
            before = [container.grown() for container in watched]
            loss.backward(**kwargs)  # type: ignore[no-untyped-call] # of torch
            for container, seen in zip(watched, before, strict=True):
                if container.grown() != seen:
                    missed += container.take_backward()
        held: list[torch.Tensor] = []
        for optimizer in optimizers:
            for group in optimizer.optimizer.param_groups:
                held += group["params"]
        late = self._late(models, held)
        if not missed and not late:
            return
        if any(container.joins for container in watched):
            raise ValueError(
                "backward inside join_uneven_inputs: gradients that the model's container does not send (of a second"
                " backward of one forward, or of parameters that came after prepare) need all ranks, and some may have"
                ' ended; use ending="exact" or "pad" for loaders of unequal lengths'
            )
        missed += self.adopt(models, late, used=True)
        self._agree(missed)
        average_gradients(missed, self._groups)

    def _agree(self, parameters: Sequence[torch.Tensor]) -> None:
        looks = [f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in parameters]
        what = "exchange of parameters that came after prepare, or of a second backward"
        found = "".join(
            f"\n  rank {rank}: {len(mine)}, {', '.join(mine[:SHOWN]) or 'none'}"
            for rank, mine in enumerate(unlike_lists(self._run.transport, what, looks))
        )
        if found:
            raise ValueError(f"{what}: every rank has to have like ones, found{found}")

    def _agree_on_numbers(self, parameters: Sequence[torch.Tensor]) -> None:
        digest = hashlib.sha256()
        for parameter in parameters:
            digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        if self._run.transport.agree("numbers of parameters that came after prepare", digest.digest()[:16]) is None:
            raise ValueError(
                f"{len(parameters)} parameters came into an optimizer past its add_param_group, and a forward has used"
                " numbers of them that ranks have unlike; use optimizer.add_param_group, which gives all ranks those of"
                " rank 0, or draw like numbers (accel.utils.set_seed)"
            )


def _nothing() -> None:
    return None
