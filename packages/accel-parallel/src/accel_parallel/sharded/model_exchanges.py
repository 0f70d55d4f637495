"""Exchange what the training of a sharded model needs beside the exchanges of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self, cast, final

import torch.distributed as dist
from torch import nn

from accel_parallel.replicated_gradients import ReplicatedGradientSync
from accel_parallel.sharded.copies_of_parts import CopiesOfParts
from accel_parallel.sharded.unused_parameter_check import UnusedParameterCheck

#: the attribute that the state which torch keeps of a sharded model has for them
_ATTRIBUTE = "_accel_exchanges"


@final
@dataclass(frozen=True, slots=True, eq=False)
class ModelExchanges:
    """The exchanges and checks of a sharded model, which stay with the model whoever prepares it again.

    Args:
        groups: Groups of ranks to average gradients over.
        everywhere: Groups of ranks that hold the same parameters.
        whole: The gradients of parameters that ranks hold whole.
        copies: The exchange between copies; None if there is one copy.
        check: The comparison of used parameters; None if ranks may use different ones.
    """

    groups: Sequence[dist.ProcessGroup]
    everywhere: Sequence[dist.ProcessGroup]
    whole: Sequence[ReplicatedGradientSync]
    copies: CopiesOfParts | None
    check: UnusedParameterCheck | None

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """Return those of a model, or None if the script has sharded it."""
        found: Self | None = vars(_state_of(model)).get(_ATTRIBUTE)
        return found

    def stay_with(self, model: nn.Module) -> None:
        """Keep these as those of a model."""
        # not in the model itself, whose attributes are copied and pickled
        setattr(_state_of(model), _ATTRIBUTE, self)

    @contextmanager
    def backward(self, *, due: bool) -> Iterator[None]:
        """Return a context for a backward.

        Args:
            due: Whether the window ends with it.

        Raises:
            UnlikeParameters: Ranks have used different parameters.

        Collective:
            Every rank must enter and leave.
        """
        before = () if self.check is None else self.check.marks()
        with nullcontext() if self.copies is None else self.copies.backward(due=due):
            yield
        if self.check is not None:
            self.check.compare(before)

    def average(self) -> None:
        """Compute the means of gradients of parameters that every rank holds whole, and of those of copies.

        Collective:
            Every rank must call.
        """
        for gradients in self.whole:
            gradients.average()
        if self.copies is not None:
            self.copies.average()


def _state_of(model: nn.Module) -> Any:
    return cast("Any", model)._get_fsdp_state()
