"""Compare a model that is sharded: equal on all ranks before, and the same model after."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from accel_amp.optimizer_parameters import parameters_of
from accel_comm import AccelError, Transport
from torch import nn
from torch.optim import Optimizer

#: differences that an error shows of each rank
SHOWN = 5


class BrokenInvariant(AccelError, ValueError):
    """An error of models or optimizers that do not go together, or that sharding has changed."""


@final
@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of a model that sharding must not change.

    Args:
        tensors: Dtype and shape of each parameter and buffer, in words.
        first_names: For each name the first name of its parameter, which tied ones share.
        trainable: Number of elements that are trained.
    """

    tensors: Mapping[str, str]
    first_names: Mapping[str, str]
    trainable: int

    @classmethod
    def of(cls, model: nn.Module) -> ModelFacts:
        """Return the facts of a model. Of a DTensor those of the whole tensor count."""
        named = list(model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        ties = {name: first.setdefault(id(parameter), name) for name, parameter in named}
        tensors = {name: _looks(tensor, trained=tensor.requires_grad) for name, tensor in named}
        tensors |= {name: _looks(tensor, trained=False) for name, tensor in model.named_buffers(remove_duplicate=False)}
        return cls(tensors, ties, _trainable(model))

    def agree(self, transport: Transport, what: str) -> None:
        """Raise if models differ between ranks, which would wait for each other, or mix up their values.

        Args:
            transport: Transport of the ranks.
            what: Name of the call, for the message.

        Raises:
            BrokenInvariant: They differ. It is raised on every rank, with what differs from rank 0.

        Collective:
            Every rank must call. Ranks exchange a digest, and names only if it differs.
        """
        ranks = unlike_lists(transport, f"{what}: compare models", self._lines())
        if not ranks:
            return
        details: list[str] = []
        for rank, lines in enumerate(ranks):
            here, there = set(lines), set(ranks[0])
            differences = [f"has {line}" for line in lines if line not in there]
            differences += [f"lacks {line}" for line in ranks[0] if line not in here]
            details += [f"rank {rank} {difference}" for difference in differences[:SHOWN]]
        raise BrokenInvariant(
            f"{what} needs models with equal names, shapes and dtypes on all ranks; compared with rank 0:\n  "
            + "\n  ".join(details or ["the order of the parameters differs"])
            + "\nBuild and convert the model alike on all ranks"
        )

    def check(self, model: nn.Module, masters: torch.dtype | None) -> None:
        """Raise if a model is not the one that these facts were taken of.

        Args:
            model: The model now.
            masters: Dtype that all trained parameters must have, or a wider one.

        Raises:
            BrokenInvariant: It has changed. The message lists what is wrong.
        """
        now = dict(model.named_parameters(remove_duplicate=False))
        problems = [f"{name} is gone" for name in self.first_names if name not in now]
        problems += [f"{name} is new" for name in now if name not in self.first_names]
        problems += [
            f"{name} is no longer tied to {leader}"
            for name, leader in self.first_names.items()
            if name in now and leader in now and now[name] is not now[leader]
        ]
        if (trained := _trainable(model)) != self.trainable:
            problems.append(f"{trained} numbers are trained, and before it were {self.trainable}")
        problems += [
            f"{name} is {parameter.dtype}, and an optimizer needs {masters}"
            for name, parameter in now.items()
            if masters is not None and parameter.requires_grad and parameter.dtype.itemsize < masters.itemsize
        ]
        if problems:
            raise BrokenInvariant(
                f"after sharding, {type(model).__name__} is another model:\n  " + "\n  ".join(problems)
            )

    def _lines(self) -> list[str]:
        return [
            f"{name}: {looks}"
            + (f", tied to {self.first_names[name]}" if self.first_names.get(name, name) != name else "")
            for name, looks in self.tensors.items()
        ]


def unlike_lists(transport: Transport, what: str, mine: list[str]) -> list[list[str]]:
    """Return the lists of all ranks if they differ, or nothing. Ranks exchange a digest first.

    Args:
        transport: The transport of the ranks.
        what: The name of the comparison in errors.
        mine: The list of this rank.

    Collective:
        Every rank must call.
    """
    digest = hashlib.sha256(repr(mine).encode()).digest()[:16]
    return [] if transport.agree(what, digest) is not None else transport.all_gather_objects(mine, what)


def parameter_ids(models: Iterable[nn.Module]) -> set[int]:
    """Return the identities of the parameters of models."""
    return {id(parameter) for model in models for parameter in model.parameters()}


def refuse_strangers(optimizers: Sequence[Optimizer], models: Iterable[nn.Module]) -> None:
    """Raise if optimizers have parameters of none of the models, which nothing would keep equal on all ranks.

    Args:
        optimizers: The optimizers.
        models: The models.

    Raises:
        BrokenInvariant: There are such parameters. The message says which.
    """
    known = parameter_ids(models)
    problems = []
    for number, optimizer in enumerate(optimizers):
        held = parameters_of(optimizer)
        strange = [tuple(parameter.shape) for parameter in held if id(parameter) not in known]
        if strange:
            problems.append(
                f"optimizer {number} ({type(optimizer).__name__}): {len(strange)} of its {len(held)} parameters, of"
                f" shapes {', '.join(map(str, strange[:SHOWN]))}"
            )
    if problems:
        raise BrokenInvariant(
            "prepare with sharded parameters: these parameters are in no prepared model:\n  "
            + "\n  ".join(problems)
            + "\nPass the model and its optimizer to one prepare(model, optimizer), or make the optimizer from"
            " the parameters of the prepared model"
        )


def refuse_renormalised(model: nn.Module, ranks: int) -> None:
    """Raise for trained embeddings with `max_norm`, of which each rank would renormalise rows of its own samples only.

    Args:
        model: The model.
        ranks: Number of ranks that train it.

    Raises:
        ValueError: There are such embeddings and several ranks. The message names them.
    """
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.max_norm is not None
        and module.weight.requires_grad
    ]
    if names and ranks > 1:
        raise ValueError(
            f"prepare on several processes: {', '.join(names)} of {type(model).__name__} with max_norm: its forward"
            " changes the rows that it looks up, and each process looks up others, so that weights would differ; leave"
            " out max_norm, and divide too long rows of what the lookup returns by their norm"
        )


def refuse_strange(parameters: Sequence[torch.Tensor]) -> None:
    """Raise for parameters that came to an optimizer after `prepare`, and are in no prepared model.

    Raises:
        BrokenInvariant: There are any.
    """
    if parameters:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in parameters[:SHOWN])
        raise BrokenInvariant(
            f"add_param_group with sharded parameters: {len(parameters)} parameters, of shapes {shapes}, are in no"
            " prepared model: prepare has put others in their places. Take them from the prepared model, as in"
            ' optimizer.add_param_group({"params": model.head.parameters()})'
        )


def _looks(tensor: torch.Tensor, *, trained: bool) -> str:
    place = ", on the meta device" if tensor.is_meta else ""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{', trained' if trained else ''}{place}"


def _trainable(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
