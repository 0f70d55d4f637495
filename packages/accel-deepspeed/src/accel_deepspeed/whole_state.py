"""Gather the state of a model and its optimizer in DeepSpeed's engine, whole and by the model's own names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import torch
from accel_parallel.steps import Steps
from torch import nn

#: what a loss scale of DeepSpeed's goes on from
_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
Dtypes = Mapping[str, torch.dtype]


def show_whole_weights(core: Any, dtypes: Dtypes, steps: Steps) -> None:
    """Register hooks that let the state dict of the engine's model have whole weights.

    Weights that are trained are the float32 masters. A rank that keeps no whole states has none in its state dict.

    Args:
        core: DeepSpeed's engine.
        dtypes: Dtypes in which the weights were prepared, by name.
        steps: Steps of the strategy, which know what this rank keeps.

    Collective:
        From then on every rank must call `state_dict` and `load_state_dict`.
    """
    model: nn.Module = core.module

    def gather(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        known: dict[int, torch.Tensor | None] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) not in known:
                whole = _whole(parameter)  # also for other ranks
                known[id(parameter)] = whole.to("cpu", dtypes[name]) if steps.keeps_whole_states else None
            if known[id(parameter)] is None:
                state.pop(prefix + name, None)
            else:
                state[prefix + name] = known[id(parameter)]

    def spread(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        loaded: set[int] = set()
        for name, parameter in module.named_parameters(remove_duplicate=False):
            value = state.get(prefix + name)
            if value is None:
                continue
            if id(parameter) not in loaded:
                loaded.add(id(parameter))
                _set_whole(parameter, value)
        _refresh(core.optimizer)
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if prefix + name in state:  # torch copies what is there already
                state[prefix + name] = parameter.data

    model.register_state_dict_post_hook(gather)  # type: ignore[no-untyped-call] # of torch
    model.register_load_state_dict_pre_hook(spread)  # type: ignore[no-untyped-call] # of torch


@final
class WholeOptimizer:
    """An optimizer of the model's own parameters, in the groups that it had, for the optimizer that an engine steps.

    Args:
        core: DeepSpeed's engine.
        groups: Parameters of each group.
        steps: Steps of the strategy, which know what this rank keeps.

    Collective:
        Every rank must call `state_dict` and `load_state_dict`.
    """

    def __init__(self, core: Any, groups: Iterable[Iterable[nn.Parameter]], steps: Steps) -> None:
        self._core, self._steps = core, steps
        self._groups = [list(group) for group in groups]
        #: no entry is to be seen after a load
        self.state: dict[torch.Tensor, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The options of DeepSpeed's groups, with the parameters of the model."""
        options = self._core.basic_optimizer.param_groups
        return [{**of, "params": group} for of, group in zip(options, self._groups, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch's optimizers give it, and the loss scale and counters of the engine."""
        number = 0
        entries: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        shared = self._shared_entries()
        if shared is not None:
            self._link()
        for group in self.param_groups:
            numbers = []
            for parameter in group["params"]:
                if parameter.requires_grad and shared is not None:
                    entries[number] = {}
                    for key in self._divided_keys():
                        whole = _whole(parameter, key)  # also for other ranks
                        if self._steps.keeps_whole_states:
                            entries[number][key] = whole.cpu()
                    # a tensor for each: optimizers count in it
                    entries[number] |= {key: _copied(value) for key, value in shared.items()}
                numbers.append(number)
                number += 1
            groups.append({**group, "params": numbers})
        return {"state": entries, "param_groups": groups, "engine": self._engine_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of `state_dict`, or of the optimizer without DeepSpeed."""
        entries, basic = state["state"], self._core.basic_optimizer
        for options, loaded in zip(basic.param_groups, state["param_groups"], strict=True):
            options.update({name: value for name, value in loaded.items() if name != "params"})
        self._begin(next(iter(entries.values()), None))
        number = 0
        for group in self._groups:
            for parameter in group:
                for key in self._divided_keys() if number in entries and parameter.requires_grad else ():
                    _set_whole(parameter, entries[number][key], key)
                number += 1
        engine = state.get("engine", {})
        for name in _COUNTS:
            setattr(self._core, name, engine.get(name, getattr(self._core, name)))
        scaler = self._core.optimizer.loss_scaler
        for name in (known for known in _SCALE if known in engine):
            setattr(scaler, name, engine[name])

    def _engine_state(self) -> dict[str, Any]:
        scaler = vars(self._core.optimizer.loss_scaler)
        counts = {name: getattr(self._core, name) for name in _COUNTS}
        return counts | {name: scaler[name] for name in _SCALE if name in scaler}

    def remember(self) -> Callable[[], None]:
        """Return a function that gives the parts of this rank, of weights and of their states, what they have now.

        Collective:
            Every rank must call what is returned.
        """
        state = self._core.basic_optimizer.state
        kept = [
            (_copied(part.detach(), "cpu"), {key: _copied(value, "cpu") for key, value in state.get(part, {}).items()})
            for part in _held(self._core)
        ]

        def put_back() -> None:
            self._begin(None)
            for part, (numbers, entry) in zip(_held(self._core), kept, strict=True):
                part.data.copy_(numbers)
                if entry:
                    state[part] = {key: _copied(value, part.device) for key, value in entry.items()}
            if state:
                self._link()
            _refresh(self._core.optimizer)

        return put_back

    def _entry(self) -> tuple[torch.Tensor, dict[str, Any]] | None:
        state = self._core.basic_optimizer.state
        return next(((part, state[part]) for part in parts_of(self._core.optimizer) if state.get(part)), None)

    def _divided_keys(self) -> list[str]:
        found = self._entry()
        if found is None:
            return []
        part, entry = found
        return [key for key, value in entry.items() if isinstance(value, torch.Tensor) and value.shape == part.shape]

    def _shared_entries(self) -> dict[str, Any] | None:
        """Return what is the same for all parameters, such as the number of steps, or None before the first step."""
        found = self._entry()
        return None if found is None else {key: found[1][key] for key in found[1].keys() - set(self._divided_keys())}

    def _begin(self, entry: Mapping[str, Any] | None) -> None:
        """Make the state of each part anew, as `entry` has it for a parameter, or remove it."""
        inner, state = self._core.optimizer, self._core.basic_optimizer.state
        for part in parts_of(inner):
            state.pop(part, None)
        if getattr(inner, "optimizer_swapper", None) is not None:
            inner.optimizer_swapper.purge_state()
        if entry is None:
            return
        for part in _masters(inner):
            state[part] = {
                # a number is shared by all parameters, and all else has the shape of its parameter
                key: torch.zeros_like(part) if isinstance(value, torch.Tensor) and value.dim() else _copied(value)
                for key, value in entry.items()
            }
        self._link()

    def _link(self) -> None:
        """Let each parameter know its part of the state, which DeepSpeed does only once all groups have stepped."""
        inner = self._core.optimizer
        if not _divides_weights(inner):
            inner._hp_optimizer_states_linked = False
            inner._lazy_init_hp_params_optimizer_state()


def _copied(value: Any, device: Any = None) -> Any:
    """Return a copy of a tensor, on the device if it has more than one number, and any other value as it is."""
    return value.to(device if value.dim() else None, copy=True) if isinstance(value, torch.Tensor) else value


def _divides_weights(inner: Any) -> bool:
    """Return True for the optimizer of ZeRO 3."""
    return hasattr(inner, "fp32_partitioned_groups_flat")


def parts_of(inner: Any) -> list[torch.Tensor]:
    """Return the flat parts of float32 weights that this rank steps, which are empty as long as they are on a disk."""
    parts: list[torch.Tensor] = (
        inner.fp32_partitioned_groups_flat if _divides_weights(inner) else inner.single_partition_of_fp32_groups
    )
    return parts


def _masters(inner: Any) -> Iterator[torch.Tensor]:
    """Yield the parts of float32 weights. Those on a disk are in memory, with their states, until the next is due."""
    for place, part in enumerate(parts_of(inner)):
        on_disk = _divides_weights(inner) and inner._swappable_optimizer_subgroup(place)
        if on_disk:
            inner._optimizer_states_and_gradient_swap_in(place)
        yield part
        if on_disk:
            inner._optimizer_states_and_gradient_swap_out(place)


def _held(core: Any) -> Iterator[torch.Tensor]:
    """Yield all parts that this rank has of float32 weights, and of frozen parameters, as `_masters` does."""
    yield from _masters(core.optimizer)
    for parameter in core.module.parameters():
        if _has_master(parameter):
            continue
        part = getattr(parameter, "ds_tensor", parameter)
        on_disk = hasattr(part, "status") and part.status.name == "NOT_AVAILABLE"
        if on_disk:
            parameter.nvme_swapper.swap_in([parameter], async_op=False)
        yield part
        if on_disk:
            parameter.nvme_swapper.swap_out_and_release([parameter])


def _whole(parameter: nn.Parameter, key: str | None = None) -> torch.Tensor:
    """Gather the master of a parameter or its state of a name, or a frozen parameter. All ranks must call."""
    from deepspeed import zero
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    if _has_master(parameter):
        if key is None:
            value: torch.Tensor = safe_get_full_fp32_param(parameter)
        else:
            value = safe_get_full_optimizer_state(parameter, key)
        return value.detach()
    with zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def _has_master(parameter: nn.Parameter) -> bool:
    """Return True if DeepSpeed steps a float32 copy of the parameter, since optimizers may have a part of a model."""
    dividing = getattr(parameter, "_z3_optimizer", None)
    divided = dividing is not None and dividing.get_param_id(parameter) in dividing.grad_position
    return parameter.requires_grad and (divided or hasattr(parameter, "_hp_mapping"))


def _set_whole(parameter: nn.Parameter, value: torch.Tensor, key: str | None = None) -> None:
    """Put whole values into the parts that ranks hold. All ranks must call."""
    from deepspeed import comm, zero
    from deepspeed.utils import (
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

    if not _has_master(parameter):
        with zero.GatheredParameters([parameter], modifier_rank=0):
            parameter.data.copy_(value)
        return
    held: Any = parameter
    if not hasattr(held, "ds_tensor"):
        if key is None:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, key)
        return
    size, rank = held.ds_tensor.numel(), comm.get_rank(held.ds_process_group)
    own = torch.zeros(size, dtype=value.dtype, device=value.device)
    given = value.reshape(-1)[size * rank : size * (rank + 1)]
    own[: given.numel()].copy_(given)
    if key is None:
        safe_set_local_fp32_param(parameter, own)
    else:
        safe_set_local_optimizer_state(parameter, own, key)


def _refresh(inner: Any) -> None:
    """Make the weights that forwards use of the masters. All ranks must call."""
    if not _divides_weights(inner):
        inner.update_lp_params()
        return
    inner._partition_all_parameters()
    for place, _ in enumerate(_masters(inner)):
        inner._reassign_or_swap_out_partitioned_parameters(place)
    if inner.persistent_parameters:
        inner.persistent_parameters[0].all_gather(inner.persistent_parameters)
