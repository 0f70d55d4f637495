"""Let optimizers follow the parameters that replaced their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final
from weakref import WeakSet, WeakValueDictionary

import torch
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.step_hook import call_before_steps
from accel_comm import AccelError
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from accel_parallel.invariants import parameter_ids

#: the way out for an optimizer that was not prepared
PREPARE_IT = (
    "Pass it to accelerator.prepare: together with its model, or made from the parameters of the prepared model"
)


class StaleParameters(AccelError, ValueError):
    """An error of an optimizer that holds parameters which its model no longer has."""


def replaced(before: Iterable[torch.Tensor], after: Iterable[torch.Tensor]) -> dict[torch.Tensor, torch.Tensor]:
    """Return the parameters that a move to another device replaced, each with its new object."""
    return {old: new for old, new in zip(before, after, strict=True) if old is not new}


def rebind(optimizer: Optimizer, new_of: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Put new parameters in the places of the old ones: in groups, state, and whatever else an optimizer holds.

    Lists and mappings stay the objects that others hold. An optimizer inside of the optimizer follows too. State of the
    shape of a parameter that is sharded now is sharded alike: it is that of rank 0.

    Args:
        optimizer: Optimizer to change.
        new_of: For each old parameter the new one.

    Collective:
        If new parameters are sharded, every rank must call with like state.
    """
    for group in optimizer.param_groups:
        _replace(group["params"], new_of)
    for old in [parameter for parameter in optimizer.state if parameter in new_of]:
        state = optimizer.state.pop(old)
        optimizer.state[new_of[old]] = {key: placed_like(value, old, new_of[old]) for key, value in state.items()}
    for name, own in vars(optimizer).items():
        if name in ("param_groups", "state"):
            continue
        if isinstance(own, Optimizer):
            rebind(own, new_of)
        else:
            vars(optimizer)[name] = _replace(own, new_of)


def _replace(held: Any, new_of: Mapping[torch.Tensor, torch.Tensor]) -> Any:
    """Return what an optimizer holds, with new parameters. Lists and mappings are changed as they are."""
    if isinstance(held, torch.Tensor):
        return new_of.get(held, held)
    if isinstance(held, list):
        held[:] = [_replace(item, new_of) for item in held]
    elif isinstance(held, dict):
        renamed = {_replace(key, new_of): _replace(value, new_of) for key, value in held.items()}
        held.clear()
        held.update(renamed)
    elif type(held) in (tuple, set, frozenset):
        return type(held)(_replace(item, new_of) for item in held)
    return held


def placed_like(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """Return the part of a whole value that this rank holds, if it is of the shape of a parameter that is sharded.

    Args:
        value: State of an optimizer.
        old: Parameter that the state was made for.
        new: The same parameter now.

    Returns:
        The part of the value of rank 0, or the value itself.
    """
    whole = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
    if not isinstance(new, DTensor) or not whole or value.shape != old.shape:
        return value
    return distribute_tensor(value.to(new.device), new.device_mesh, new.placements)


def carry_over(before: Iterable[tuple[str, torch.Tensor]], after: Mapping[str, torch.Tensor]) -> None:
    """Give parameters that replaced others of their names the attributes of these, and their hooks.

    Attributes such as `lr_scale`, by which scripts sort parameters. A handle that the script has of a hook works on.

    Args:
        before: Old parameters with their names.
        after: New parameters by name.
    """
    for name, old in before:
        new: Any = after[name]  # torch has given hooks no type
        if new is old:
            continue
        _REPLACED.add(old)
        vars(new).update((key, value) for key, value in vars(old).items() if key not in vars(new))
        held: Any = old
        if held._post_accumulate_grad_hooks and new._post_accumulate_grad_hooks is None:
            new._post_accumulate_grad_hooks = held._post_accumulate_grad_hooks
        if held._backward_hooks and new._backward_hooks is None and not isinstance(new, DTensor):
            new._backward_hooks = held._backward_hooks


@final
class _Replaced:
    """The parameters that others have replaced, by their ids. Optimizers that still hold some are refused at a step."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
        self._seen: WeakSet[Optimizer] = WeakSet()
        self._hook: RemovableHandle | None = None

    def add(self, parameter: torch.Tensor) -> None:
        """Note a parameter. From the first on, each optimizer is looked at before its next step."""
        self._held[id(parameter)] = parameter
        self._seen.clear()
        self._hook = self._hook or call_before_steps(self._look)

    def _look(self, optimizer: Optimizer) -> None:
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        stale = sum(self._held.get(id(one)) is one for one in parameters_of(optimizer))
        if stale:
            raise RuntimeError(
                f"this {type(optimizer).__name__} is not prepared, and holds {stale} parameters that prepare has"
                f" replaced, and would train nothing. {PREPARE_IT}"
            )


_REPLACED = _Replaced()


def follow(model: nn.Module, names: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Optimizer]) -> None:
    """Let optimizers follow parameters that were replaced by others of their names, which get their attributes.

    Args:
        model: Model with the new parameters.
        names: Old parameters with their names.
        optimizers: Optimizers to change.

    Collective:
        If new parameters are sharded, every rank must call with like state.
    """
    now = dict(model.named_parameters(remove_duplicate=False))
    # the first name of a tied parameter counts
    before = {parameter: now[name] for name, parameter in reversed(names)}
    new_of = replaced(before, before.values())
    carry_over(names, now)
    if new_of:
        for optimizer in optimizers:
            rebind(optimizer, new_of)


def refuse_hooks(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise for parameters that are sharded and have a hook of their gradient, which torch would never call.

    Raises:
        ValueError: There are any. The message names them.
    """
    names = [name for name, parameter in named if parameter._backward_hooks]
    if names:
        shown = f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
        raise ValueError(
            f"register_hook of {shown}: the gradient of a sharded parameter comes to no such hook. Use"
            " parameter.register_post_accumulate_grad_hook(hook), which finds the sharded gradient in parameter.grad,"
            " or strategy='ddp'"
        )


def tie_again(model: nn.Module, names: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Make parameters one again that were one before a move and came out of it as two.

    Args:
        model: Model after the move.
        names: Parameters before it, with their names.
    """
    after = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, parameter in names:
        leader = first.setdefault(id(parameter), name)
        if after[name] is not after[leader]:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, after[leader])


def refuse_stale(optimizers: Sequence[Optimizer], models: Sequence[nn.Module], device: torch.device) -> None:
    """Raise for optimizers of parameters that a move to a device has replaced.

    Args:
        optimizers: The optimizers.
        models: Models after the move.
        device: Device that they were moved to.

    Raises:
        StaleParameters: An optimizer has parameters on another device, with the shapes of a model on `device`.
    """
    known = parameter_ids(models)
    looks = [Counter(parameter.shape for parameter in model.parameters()) for model in models]
    for number, optimizer in enumerate(optimizers):
        held = parameters_of(optimizer)
        elsewhere = all(id(parameter) not in known and parameter.device != device for parameter in held)
        if held and elsewhere and Counter(parameter.shape for parameter in held) in looks:
            raise StaleParameters(
                f"optimizer {number} ({type(optimizer).__name__}) holds {len(held)} parameters that none of the models"
                " has any more: they were replaced when the model was moved to its device. Create the optimizer after"
                " model.to(accelerator.device), or leave the moving to prepare (device_placement=True)"
            )


def refuse_replaced(parameters: Iterable[torch.Tensor], models: Iterable[nn.Module], device: torch.device) -> None:
    """Raise for parameters of a new group that are elsewhere than the models, as a move has replaced them.

    Args:
        parameters: Parameters of the group.
        models: Prepared models.
        device: Device of the models.

    Raises:
        StaleParameters: Some are in none of the models, and not on `device`.
    """
    elsewhere = [parameter for parameter in parameters if parameter.device.type != device.type]
    known = parameter_ids(models) if elsewhere else set()
    stale = [parameter for parameter in elsewhere if id(parameter) not in known]
    if stale:
        raise StaleParameters(
            f"add_param_group: {len(stale)} parameters are on {stale[0].device} and in no prepared model: prepare has"
            f" put others in their places on {device}. Take them from the prepared model"
        )
