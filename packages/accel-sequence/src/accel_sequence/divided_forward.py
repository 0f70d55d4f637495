"""Run the forward of a model on the part of its batch that this rank holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any, final

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from accel_sequence.batch import continues, divide
from accel_sequence.division import CannotDivide, Division, Ranks, announce, dividing, remember, supersede
from accel_sequence.proof import cut, prove

Reached = list[tuple[Any, str]]


@final
class DividedForward:
    """A forward whose arguments are whole sequences, and whose work is the part of this rank.

    With gradients, outputs are those of the part, and the loss is that of whole sequences. Without, outputs are whole.
    A forward that generates is not divided.

    Args:
        forward: The forward of the model.
        model: The model.
        ranks: The ranks that share sequences.
        reached: The configs by which transformers' registry finds attention, with the name that each had.
    """

    def __init__(self, forward: Callable[..., Any], model: nn.Module, ranks: Ranks, reached: Reached) -> None:
        self.forward = forward
        self._name, self._ranks, self._reached = type(model).__name__, ranks, reached
        self._signature = signature(forward)
        self._model = model
        # for each kind of forward, which of its outputs have tokens
        self._proven: dict[tuple[Any, ...], list[bool]] = {}
        self._newest: Division | None = None
        # Tools look at a forward's name and signature, through __wrapped__.
        self.__wrapped__ = forward
        self.__name__ = "forward"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self._named(args, kwargs)
        if not torch.is_grad_enabled():
            supersede()
        if continues(arguments):
            return self._undivided(arguments)
        reached = bool(self._reached)
        arguments |= {"use_cache": False} if reached and self._takes("use_cache") else {}
        split = partial(divide, ranks=self._ranks, takes_positions=self._takes("position_ids"), reached=reached)
        # forwards of another kind may return other things
        kind = tuple((name, x is None, getattr(x, "ndim", x is True)) for name, x in arguments.items())
        division, parts = split(arguments)
        if kind not in self._proven:
            self._refuse_unlike(arguments)
            first = cut(arguments, division, reached=reached)
            some, mine = split(first)
            whole, part = partial(self._undivided, first), partial(self._divided, some, mine)
            self._proven[kind] = prove(self._model, whole, part, some)
        outputs = self._divided(division, parts)
        leaves, structure = tree_flatten(outputs)
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        by_token = self._proven[kind]
        found = [one for one, has_tokens in zip(tensors, by_token, strict=False) if has_tokens]
        if not tensors or len(tensors) != len(by_token) or any(one.shape[1:2] != (division.part,) for one in found):
            raise CannotDivide(
                f"{self._name} returns no tensors, or others than it did for its first tokens, in evaluation; return"
                " tensors, alone or in tuples, lists and dicts, and the same in training"
            )
        if torch.is_grad_enabled():
            self._newest = division
            remember(division)
            announce(tensors, division)
            return outputs
        held = {id(one) for one in found}
        return tree_unflatten([division.whole(one) if id(one) in held else one for one in leaves], structure)

    def _divided(self, division: Division, parts: dict[str, Any]) -> Any:
        with dividing(division):
            return self.forward(**parts)

    def _undivided(self, arguments: dict[str, Any]) -> Any:
        """Run a forward on whole sequences, with the attention that the model had."""
        reached = [(config, config._attn_implementation) for config, _ in self._reached]
        try:
            for config, name in self._reached:
                config._attn_implementation = name
            with dividing(None):
                return self.forward(**arguments)
        finally:
            for config, name in reached:
                config._attn_implementation = name

    def _takes(self, name: str) -> bool:
        named = self._signature.parameters
        anything = any(one.kind is Parameter.VAR_KEYWORD for one in named.values())
        return name in named or (anything and bool(self._reached))

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
        sums = [x.detach().double().sum() + x.numel() for x in arguments.values() if isinstance(x, torch.Tensor)]
        found = self._ranks.all.gather(torch.stack(sums).sum())
        if not bool((found == found[0]).all()):
            raise CannotDivide(
                f"the ranks that share sequences were given unlike batches for {self._name}; pass the DataLoader to"
                " accelerator.prepare, or give them the same samples"
            )
