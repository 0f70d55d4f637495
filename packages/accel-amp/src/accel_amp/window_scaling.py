"""Scale the losses of a window of micro-batches so that its gradients are those of one large batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from accel_comm import Transport
from accel_state import AccumulationState

from accel_amp.local_part import local_part


@final
class WindowScaler:
    """A scaler of losses, for gradients that are those of all samples of a window together.

    Without weights, the loss of a window is the mean over its micro-batches, however many it has. With weights, it is
    the sum of all losses divided by the sum of all weights, over all ranks. This takes one exchange of two values for
    each window.

    Args:
        accumulation: The window of micro-batches of the script.
        transport: Transport of the ranks that train together.
        parameters: Function that returns the parameters whose gradients are multiplied.
        scaled: Whether losses are multiplied by a scale too, as in fp16. A loss with a weight is then divided by about
            that weight at first, and so stays in the range of float16.
        rescale: Function that multiplies gradients that are not in `grad` of the parameters, and whose owner drops them
            with the window.
    """

    def __init__(
        self,
        accumulation: AccumulationState,
        transport: Transport,
        parameters: Callable[[], Iterable[torch.Tensor]],
        *,
        scaled: bool = False,
        rescale: Callable[[torch.Tensor | float], None] | None = None,
    ) -> None:
        self._accumulation = accumulation
        self._transport = transport
        self._parameters = parameters
        self._scaled = scaled
        # what multiplies gradients that are not in the parameters' `grad`, and drops them with the window
        self._rescale_elsewhere = rescale
        #: weight and loss of the newest window that had weights, over all ranks
        self._newest: torch.Tensor | None = None
        self.begin_window(dropped=False)
        accumulation.tell(self)

    def begin_window(self, dropped: bool) -> None:
        """Forget the losses of the last window.

        Args:
            dropped: Whether the last window was dropped: then its gradients are forgotten too.
        """
        #: what the losses of this window were divided by; None before the first
        self._divisor: torch.Tensor | int | None = None
        self._weighted: bool | None = None
        self._settled = False
        #: weight and loss of this window, so far and here
        self._sums: list[torch.Tensor] = []
        if dropped and self._rescale_elsewhere is None:
            for parameter in self._parameters():
                parameter.grad = None

    @property
    def last_loss(self) -> float:
        """The loss of the newest window that had weights: the sum of all losses over the sum of all weights.

        Raises:
            RuntimeError: No window with weights has ended yet.
        """
        if self._newest is None:
            raise RuntimeError(
                "last_loss is known after backward(loss, weight=...) at the end of a window; losses without a weight"
                " are not added up"
            )
        loss, weight = self._newest.tolist()
        return float(loss / weight)

    def state_dict(self) -> dict[str, Any]:
        """Return the loss and the weight of the newest window that had weights."""
        return {"newest": self._newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume after the window in which the state was taken, and forget the current one."""
        newest = state["newest"]
        self._newest = newest if newest is None or self._newest is None else newest.to(self._newest.device)
        self.begin_window(dropped=False)

    def scale_loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None = None) -> torch.Tensor:
        """Return the loss to call `backward` on, in place of `loss`.

        Args:
            loss: The loss of a micro-batch: a mean without `weight`, and a sum with it.
            weight: What the loss is a sum over, such as its number of tokens.

        Raises:
            ValueError: The weight is not a single number of at least zero, the weights of a window are all zero
                (noticed on the CPU only), only some losses of a window have weights, or the loss comes where weights
                cannot be added up.

        Collective:
            With weights, every rank must call at the end of each window.
        """
        accumulation = self._accumulation
        position = accumulation.position if accumulation.inside else 0
        unscaled = accumulation.every == 1 and position <= 1 and accumulation.due
        if weight is None and unscaled and self._weighted is None:
            return loss  # nothing to scale, and nothing to look after
        if position == 0:
            self.begin_window(dropped=False)
        if self._weighted is not None and self._weighted != (weight is not None):
            raise ValueError(
                "backward: some losses of this window have a weight and others have none; give each its weight, or none"
            )
        if weight is None:
            return self._mean(loss, position)
        if position == 0 and accumulation.every > 1:
            raise ValueError(
                f"backward: weights of a window of {accumulation.every} micro-batches are added up within accumulate();"
                " put the micro-batch into `with accelerator.accumulate(model):`"
            )
        self._weighted = True
        return self._by_weight(loss, _checked(weight, loss))

    def _mean(self, loss: torch.Tensor, position: int) -> torch.Tensor:
        accumulation = self._accumulation
        if position:
            self._weighted = False
        size = position if accumulation.due and position else accumulation.every
        if accumulation.due and not self._settled:
            self._settled = True
            if self._divisor is not None and self._divisor != size:  # a window that ends early, or late
                self._rescale(self._divisor / size)
        elif not accumulation.due:
            # all losses of a window are divided alike, also where the number of steps is changed inside of it
            self._divisor = size = self._divisor if isinstance(self._divisor, int) else accumulation.every
        return loss / size if size > 1 else loss

    def _by_weight(self, loss: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        accumulation = self._accumulation
        if self._settled:
            raise ValueError(
                "backward: a second loss with a weight at the end of a window, when the weights are added up already."
                " Add the losses and call backward once; for models that are trained in turns use an Accelerator each"
            )
        here = torch.stack([loss.detach().to(weight.dtype).reshape(()), weight])
        self._sums.append(here)
        if not accumulation.due:
            if self._divisor is None:
                self._divisor = self._about() if self._scaled else 1
            return loss / self._divisor
        early = len(self._sums) > 1
        self._newest = self._transport.all_reduce(torch.stack(self._sums).sum(0), "sum")
        total = self._newest[1]
        if total.device.type == "cpu" and not total > 0:
            raise ValueError("backward: all weights of this window are zero, on all ranks: its mean does not exist")
        # gradients are averaged over ranks; where the total is not looked at, a window of nothing learns nothing
        factor = torch.where(total > 0, self._transport.size / total, torch.zeros_like(total))
        if early:
            self._rescale(factor if self._divisor is None else factor * self._divisor)
        if accumulation.inside:
            self._settled = True
        else:
            self._sums, self._weighted = [], None
        return loss * factor.to(loss.dtype)

    def _about(self) -> torch.Tensor | int:
        """Return about the weight of a loss, the same on all ranks, as a power of two, which changes no digit."""
        if self._newest is None:
            return 1
        one = self._newest[1] / (self._transport.size * self._accumulation.every)
        return torch.exp2(torch.log2(one.clamp(min=1)).round())

    @torch.no_grad()
    def _rescale(self, factor: torch.Tensor | float) -> None:
        """Multiply the gradients of the window so far."""
        if self._rescale_elsewhere is not None:
            self._rescale_elsewhere(factor)
            return
        gradients = {id(one.grad): one.grad for one in self._parameters() if one.grad is not None}
        alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in map(local_part, gradients.values()):
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        for (device, dtype), group in alike.items():
            if isinstance(factor, torch.Tensor):
                # a GPU multiplies all in one call by a factor of their dtype; the CPU by any, which it need not round
                torch._foreach_mul_(group, factor.to(device, factor.dtype if device.type == "cpu" else dtype))
            else:
                torch._foreach_mul_(group, factor)


def _checked(weight: torch.Tensor | float, loss: torch.Tensor) -> torch.Tensor:
    """Return the weight as a tensor beside the loss, in the widest format that the device has."""
    if not isinstance(weight, torch.Tensor):
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ValueError(f"backward: weight={weight!r}: expected a number, such as the tokens of this loss")
    elif weight.numel() != 1:
        raise ValueError(
            f"backward: weight has {weight.numel()} elements; expected one number, such as the tokens of this loss"
        )
    if loss.numel() != 1:
        raise ValueError(f"backward: a loss of {loss.numel()} elements with a weight; sum it up first: loss.sum()")
    dtype = torch.float32 if loss.device.type == "mps" else torch.float64
    if not isinstance(weight, torch.Tensor) or weight.device.type == "cpu":
        number = float(weight.detach() if isinstance(weight, torch.Tensor) else weight)
        if not (number >= 0 and math.isfinite(number)):
            raise ValueError(f"backward: weight={number}: expected a number that is zero or more")
        # torch.tensor would copy the value from the host, which waits until the device has done all before
        return torch.full((), number, dtype=dtype, device=loss.device)
    return weight.detach().to(loss.device, dtype).reshape(())
