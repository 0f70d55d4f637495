"""The content of checkpoints: models, and everything else that has a state, each under its name."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from accel_amp.optimizer_parameters import parameters_of
from accel_amp.optimizer_state import NamedOptimizerState, names_of
from accel_checkpoint import CheckpointError, encode
from accel_checkpoint.pieces import is_distributed
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel.checkpoint.parts import is_divided
from accel.preparation import Preparer
from accel.step.training_step import TrainingStep

SaveHook = Callable[[list[nn.Module], list[dict[str, Any]], str], None]
LoadHook = Callable[[list[nn.Module], str], None]
#: where the tensors of everything go that is neither a model nor an optimizer
REST = "state.safetensors"


@dataclass(frozen=True, slots=True)
class StatefulItem:
    """An object that has a state.

    Args:
        name: The name that it is saved under.
        file: The file for its tensors.
        kind: The name of its class.
        state: Returns its state.
        problems: Says in words why a state cannot be loaded, and changes nothing.
        load: Loads a state.
        users_own: Whether it is an object of the user's own.
        layouts: Returns its divided tensors, by the path of what is saved of each. Loaded tensors are divided like
            them.
        collective: Whether its state is spread over processes, so that every process must call `state` and `load`.
    """

    name: str
    file: str
    kind: str
    state: Callable[[], Any]
    problems: Callable[[Any], list[str]]
    load: Callable[[Any], None]
    users_own: bool = False
    layouts: Callable[[], Mapping[str, torch.Tensor]] = dict
    collective: bool = False


@final
class CheckpointRegistry:
    """The objects that a checkpoint holds, and the hooks of the script."""

    def __init__(self, preparer: Preparer, training: TrainingStep) -> None:
        self.components = preparer.components
        self.preparer = preparer
        self.training = training
        self.objects: dict[str, Any] = {}
        # what a RemovableHandle refers to weakly
        self.save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self.load_hooks: OrderedDict[int, LoadHook] = OrderedDict()

    @contextmanager
    def keeping_whole_states(self, kept: bool) -> Iterator[None]:
        """Let this rank keep states that it gathers with others inside the block, or only take part."""
        steps = self.components.steps
        before, steps.keeps_whole_states = steps.keeps_whole_states, kept
        try:
            yield
        finally:
            steps.keeps_whole_states = before

    def register(self, objects: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Add objects under the names of their classes, and others under names of their own.

        Raises:
            ValueError: It lists all objects without a state, and names that are taken.
        """
        all_named, problems = dict(self.objects), []
        for place, added in enumerate(objects):
            kind, number = type(added).__name__, 0
            while _key(kind, number) in all_named or _key(kind, number) in named:
                number += 1
            if not _has_state(added):
                where = f"Item at index {place}"  # as Accelerate says it
                problems.append(f"{where} (a {kind})")
            all_named[_key(kind, number)] = added
        for name, added in named.items():
            if not _has_state(added):
                problems.append(f"{name} (a {type(added).__name__})")
            if self.objects.get(name, added) is not added:
                problems.append(f"{name}, which is the name of another object")
            all_named[name] = added
        if problems:
            raise ValueError(
                "register_for_checkpointing takes objects with state_dict and load_state_dict, each under a name of its"
                f" own; found {', '.join(problems)}"
            )
        self.objects = all_named

    def models(self) -> dict[str, nn.Module]:
        """Return the models that were given to `prepare`, by name."""
        prepared = enumerate(self.preparer.models)
        return {_key("model", place): self.preparer.unwrap(model, keep_compile=False) for place, model in prepared}

    def items(self) -> list[StatefulItem]:
        """Return everything else, in the order of loading: what may refuse comes first."""
        preparer, names = self.preparer, names_of(self.models())
        loaders: list[Any] = preparer.loaders
        listed = [
            _of(_key("loader", place), loader, _loader_problems, kind="DataLoader", collective=loader.state_is_spread)
            for place, loader in enumerate(loaders)
        ]
        listed += [
            _of(f"object:{name}", owner, lambda owner, state: [], users_own=True)
            for name, owner in self.objects.items()
        ]
        for place, prepared in enumerate(preparer.optimizers):
            name, optimizer = _key("optimizer", place), NamedOptimizerState(prepared.saved, names)
            file, kind = f"{name}.safetensors", type(prepared.optimizer).__name__
            spread = prepared.state_of is not None
            state = (optimizer.state, optimizer.problems, optimizer.load)
            layouts = partial(_layouts_of_state, name, optimizer)
            listed.append(StatefulItem(name, file, kind, *state, layouts=layouts, collective=spread))
        for place, scheduler in enumerate(preparer.schedulers):
            listed.append(_of(_key("scheduler", place), scheduler, _lacking, kind=type(scheduler.scheduler).__name__))
        if preparer.components.scaler is not None:
            listed.append(_of("scaler", preparer.components.scaler, _lacking))
        # the words under which checkpoints have it
        return [*listed, _of("clock", self.training, TrainingStep.problems, kind="StepClock")]

    def divided(self) -> list[str]:
        """Return the models and optimizers that no process has whole."""
        models = [name for name, model in self.models().items() if is_divided(model)]
        return models + [item.name for item in self.items() if item.collective and item.kind != "DataLoader"]

    def losses(self) -> list[str]:
        """Return what a checkpoint that is taken now will lack, in words."""
        accumulation, lines = self.components.accumulation, []
        if accumulation.waiting and not accumulation.due:
            lines.append(
                "save_state inside of a window of gradient accumulation: the checkpoint is that of the last optimizer"
                " step, and the micro-batches since will be served again; what they changed in buffers, random numbers"
                " and registered objects stays. Save where accelerator.sync_gradients is true to be exact"
            )
        optimizers = self.preparer.optimizers
        pending = bool(optimizers) and accumulation.inside and accumulation.due and accumulation.has_loss
        if pending and all(optimizer.stepped_at != accumulation.steps for optimizer in optimizers):
            lines.append(
                "save_state before the optimizer step that is due: gradients are not saved, and the batches of this"
                " window count as served, so that a resume leaves them out; save after optimizer.step()"
            )
        if self.training.local_only:
            lines.append(
                "save_state inside of LocalSGD: each process has a model of its own there, and that of the main process"
                " is saved; save after the block"
            )
        names = names_of(self.models())
        held = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer.saved)]
        lost = sum(id(parameter) not in names for parameter in held)
        if lost and not self.objects:
            lines.append(
                f"save_state: {lost} parameters of prepared optimizers are in no prepared model, and are not saved;"
                " register what holds them: register_for_checkpointing(module)"
            )
        return lines


def add_hook(hooks: dict[int, Any], hook: Any) -> RemovableHandle:
    """Add a hook, and return what removes it again."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _key(kind: str, place: int) -> str:
    """Return the name of the first, second, ... object of a kind."""
    return kind if place == 0 else f"{kind}_{place}"


def _of(
    name: str,
    owner: Any,
    problems: Callable[[Any, Any], list[str]],
    *,
    kind: str | None = None,
    users_own: bool = False,
    collective: bool = False,
) -> StatefulItem:
    layouts = partial(_layouts, name, owner) if users_own else dict
    return StatefulItem(
        name,
        REST,
        kind or type(owner).__name__,
        owner.state_dict,
        partial(problems, owner),
        owner.load_state_dict,
        users_own,
        layouts,
        collective,
    )


def _layouts_of_state(name: str, optimizer: NamedOptimizerState) -> dict[str, torch.Tensor]:
    parameters = optimizer.parameters().items()
    return {f"{name}.state.{path}": parameter for path, parameter in parameters if is_distributed(parameter)}


def _layouts(name: str, owner: Any) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    with suppress(CheckpointError):  # a state that cannot be saved has not been saved
        encode({name: owner.state_dict()}, tensors)
    return {path: tensor for path, tensor in tensors.items() if is_distributed(tensor)}


def _has_state(candidate: Any) -> bool:
    methods = [getattr(candidate, name, None) for name in ("state_dict", "load_state_dict")]
    return not isinstance(candidate, type) and all(map(callable, methods))


def _loader_problems(loader: Any, state: Any) -> list[str]:
    from accel_data.resume.loader_state import LoaderState, ResumeError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when it is loaded
            LoaderState.of(state, fresh=loader.fresh(), strict=True)
    except ResumeError as error:
        return [str(error)]
    return []


def _lacking(owner: Any, state: Any) -> list[str]:
    missing = sorted(owner.state_dict().keys() - state.keys())
    return [f"its state lacks {', '.join(missing)}"] if missing else []
