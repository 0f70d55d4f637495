"""Run the forward of a model on the part of its batch that this rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import Parameter, signature
from typing import Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from accel_sequence.batch import continues, divide
from accel_sequence.division import CannotDivide, Division, Ranks, announce, dividing, remember, supersede
from accel_sequence.stray_attention import NoStrayAttention


@final
class DividedForward:
    """A forward whose arguments are whole sequences, and whose work is the part of this rank.

    With gradients, outputs are those of the part, and the loss is that of whole sequences. Without, outputs are whole.
    A forward that generates is not divided.

    Args:
        forward: The forward of the model.
        model: The model.
        ranks: The ranks that share sequences.
        layers: Number of layers whose attention transformers' registry reaches.
    """

    def __init__(self, forward: Callable[..., Any], model: nn.Module, ranks: Ranks, layers: int) -> None:
        self.forward = forward
        self._name, self._ranks, self._layers = type(model).__name__, ranks, layers
        self._signature = signature(forward)
        # a pooled output may be as wide as a part is long
        self._widths = {size for parameter in model.parameters() for size in parameter.shape}
        self._proven = False
        self._newest: Division | None = None
        # Tools look at a forward's name and signature, through __wrapped__.
        self.__wrapped__ = forward
        self.__name__ = "forward"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._named(args, kwargs)
        if not torch.is_grad_enabled():
            supersede()
        if continues(arguments):
            with dividing(None):
                return self.forward(*args, **kwargs)
        if not self._proven:
            self._refuse_unlike(arguments)
        division, parts = divide(arguments, self._ranks, takes_positions=self._takes("position_ids"))
        if self._layers and self._takes("use_cache"):
            parts["use_cache"] = False
        watch = nullcontext() if self._proven else NoStrayAttention(self._name, division.part)
        with dividing(division), watch:
            outputs = self.forward(**parts)
        tensors = [one for one in tree_leaves(outputs) if isinstance(one, torch.Tensor)]
        self._check(division, tensors)
        self._proven = True
        if torch.is_grad_enabled():
            self._newest = division
            remember(division)
            announce(tensors, division)
            return outputs
        return tree_map(partial(_whole, division=division), outputs)

    def _takes(self, name: str) -> bool:
        named = self._signature.parameters
        anything = any(one.kind is Parameter.VAR_KEYWORD for one in named.values())
        return name in named or (anything and bool(self._layers))

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs).arguments
        named: dict[str, Any] = {}
        for name, value in bound.items():
            kind = self._signature.parameters[name].kind
            if kind is Parameter.VAR_KEYWORD:
                named.update(value)
            elif kind in (Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY):
                raise CannotDivide(
                    f"{self._name} takes arguments without names (*{name}), so nobody knows which of them have tokens;"
                    " give its forward names, or leave out sp_size and cp_size"
                )
            else:
                named[name] = value
        return named

    def _refuse_unlike(self, arguments: Mapping[str, Any]) -> None:
        """Raise on every rank if those that share sequences were given unlike tensors."""
        sums = [float(x.detach().double().sum()) + x.numel() for x in arguments.values() if isinstance(x, torch.Tensor)]
        device = next((x.device for x in arguments.values() if isinstance(x, torch.Tensor)), None)
        mine = torch.tensor([float(len(sums)), sum(sums)], dtype=torch.float64, device=device)
        found = self._ranks.all.gather(mine)
        if not bool((found == found[0]).all()):
            raise CannotDivide(
                f"the {self._ranks.all.size} ranks that share sequences were given unlike batches for"
                f" {self._name}; pass the DataLoader to accelerator.prepare, or give them the same samples"
            )

    def _check(self, division: Division, tensors: Sequence[torch.Tensor]) -> None:
        """Raise if the model went around the functions that know the other ranks."""
        attended, wanted = division.attended, max(self._layers, 1)
        if attended < wanted:
            raise CannotDivide(
                f"{self._name} computed {attended} of {wanted} layers by an attention that is divided, and the others"
                " saw a part of the sequence; call accel_sequence.attention in all, or leave out sp_size and cp_size"
            )
        part = division.part
        strange = [
            tuple(one.shape)
            for one in tensors
            if one.is_floating_point()
            and (one.ndim or not division.losses)
            and (one.shape[1:2] != (part,) or (one.ndim == 2 and part in self._widths))
        ]
        if strange:
            raise CannotDivide(
                f"{self._name} returns {strange}, where (rows, {part}, ...) belongs to tokens, so"
                " it is that of a part; compute losses by accel_sequence.loss, and return what belongs to tokens only"
            )
        if not self._takes("position_ids") and not division.asked_positions:
            raise CannotDivide(
                f"{self._name} takes no position_ids and has not asked for positions, so this part would have those of"
                " the first; call accel_sequence.positions(tokens) in its forward, or give the forward position_ids"
            )


def _whole(output: Any, division: Division) -> Any:
    """Return an output for whole sequences, if it has one entry for each token."""
    by_token = isinstance(output, torch.Tensor) and output.ndim >= 2 and output.shape[1] == division.part
    return division.whole(output) if by_token else output
