"""The training step: micro-batches, what each loss adds to the gradients of its window, and who exchanges them."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from accel_amp import WindowScaler, autocast
from accel_amp.optimizer_parameters import parameters_of
from accel_data import Ending
from torch import nn

from accel.handlers import AutocastKwargs
from accel.preparation import Preparer
from accel.step.micro_batch import MicroBatch
from accel.step.observer import StepObserver

logger = logging.getLogger("accel")


@final
class TrainingStep:
    """The steps of what a `Preparer` has prepared."""

    def __init__(self, preparer: Preparer, observer: StepObserver | None = None) -> None:
        self._preparer = preparer
        self._observer = observer
        self._components = preparer.components
        self._accumulation = preparer.components.accumulation
        self._steps = preparer.components.steps
        self._sync_each_batch = preparer.settings.accumulation.sync_each_batch
        #: whether processes may have unequal numbers of batches
        self.joining = False
        self._warned: set[str] = set()
        #: whether gradients stay in this process, whatever is due
        self.local_only = False
        self._begin()

    def _begin(self) -> None:
        self.window = WindowScaler(
            self._accumulation,
            self._components.run.transport,
            partial(_parameters, self._preparer),  # not of this object, which would then never be freed at once
            scaled=self._components.precision.policy.scale_loss,
            rescale=self._steps.rescale,
        )
        #: whether losses have weights, once all processes have agreed
        self._weighted: bool | None = None
        #: whether losses have no weights, as all agreed, and torch's own backward takes them as they are
        self._plain = False

    def free(self, objects: Sequence[object]) -> list[None]:
        """Forget what was prepared and its windows, and return a None for each object."""
        self._preparer.forget()
        self._accumulation.forget_listeners()
        self._accumulation.reset()
        self._begin()
        nothing: list[None] = [None] * len(objects)
        gc.collect()
        self._components.run.device.release_memory()
        return nothing

    def set_every(self, steps: int) -> None:
        """Set the number of micro-batches to an optimizer step.

        Raises:
            ValueError: It is no whole number of at least 1, or ranks have agreed on another.
        """
        if self.joining and steps != self._accumulation.every:
            raise ValueError(
                f"gradient_accumulation_steps = {steps} inside join_uneven_inputs: set it before the block, since"
                " ranks agree on it when the block begins"
            )
        self._accumulation.set_every(steps)
        if steps > 1:
            self._components.guard.arm()

    def set_position(self, position: int) -> None:
        """Begin a window anew, if `position` is 0.

        Raises:
            ValueError: It is another number.
        """
        if position != 0:
            raise ValueError(
                f"accelerator.step = {position}: accumulate() counts; only 0 may be set, to begin a window"
            )
        self._accumulation.reset()

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Return the context of one micro-batch of these models."""
        return MicroBatch(self._preparer, models, always=self._sync_each_batch)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context of a forward and backward whose gradients stay in this process.

        Raises:
            ValueError: The strategy must see every backward.
        """
        self._components.refuse("no_sync")
        return self._components.strategy.synchronising(self._preparer.container(model, "no_sync"), enabled=False)

    def local_steps(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context in which gradients stay in this process, also when a step is due.

        Raises:
            ValueError: Ranks hold parts of parameters: a step of one rank would need them whole.
        """
        self._components.refuse("local steps (LocalSGD)")
        return self._keep_local(self.no_sync(model))

    @contextmanager
    def _keep_local(self, no_sync: AbstractContextManager[None]) -> Iterator[None]:
        with no_sync:
            self.local_only = True
            try:
                yield
            finally:
                self.local_only = False

    def trigger_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context of a backward whose gradients are exchanged, though its forward was under `no_sync`."""
        self._components.refuse("trigger_sync_in_backward")
        container = self._preparer.container(model, "trigger_sync_in_backward")
        return self._components.strategy.synchronising_backward(container)

    @contextmanager
    def join_uneven_inputs(self, models: Iterable[nn.Module], even_batches: bool | None = None) -> Iterator[None]:
        """Let processes have unequal numbers of batches inside the block.

        Raises:
            ValueError: A window would go on after the end of the data.

        Collective:
            Every process must enter and leave it.
        """
        self._components.refuse("join_uneven_inputs")
        with ExitStack() as changed:
            if even_batches is not None:
                changed.enter_context(self._preparer.ending(Ending.REPEAT if even_batches else Ending.UNEVEN))
            changed.enter_context(self._preparer.join_context(models))
            self.joining = True
            try:
                yield
            finally:
                self.joining = False

    def backward(self, loss: torch.Tensor, weight: torch.Tensor | float | None = None, **kwargs: Any) -> None:
        """Add the gradients of a loss to those of its window.

        Args:
            loss: The loss, a mean, or a sum if it has a weight.
            weight: The number that the sum of the losses of a window is divided by, together with the others.
            **kwargs: Arguments of torch's `backward`.

        Raises:
            ValueError: The weight is no single number of at least 0, some losses of the window lack one, or weights
                cannot be added up here.

        Collective:
            Every process must call if a step is due, with a weight on all or on none.
        """
        if self._observer is not None:
            self._observer.loss(loss, weight)
        if weight is not None or kwargs or not self._plain or not self._accumulation.alone:
            loss = self.scale_loss(loss, weight)
            if self._components.scaler is not None:
                loss = self._components.scaler.scale(loss)
        due = self._accumulation.due and not self.local_only
        self._steps.backward(loss, self._preparer.models, self._preparer.optimizers, due=due, **kwargs)

    def scale_loss(self, loss: torch.Tensor, weight: torch.Tensor | float | None) -> torch.Tensor:
        """Return what to call backward on in place of a loss, so that its window becomes the mean.

        Raises:
            ValueError: As for `backward`.

        Collective:
            Every process must call if a step is due, with a weight on all or on none.
        """
        accumulation = self._accumulation
        if weight is not None and self.local_only:
            raise ValueError(
                "backward: inside LocalSGD gradients are not shared, and so no weights; divide the loss instead"
            )
        if not self._preparer.models:
            self._warn_of_no_model()
        if accumulation.inside:
            accumulation.has_loss = True
        else:
            if accumulation.ends_anywhere is not None:
                raise ValueError(
                    "backward outside of accumulate(), inside join_uneven_inputs with"
                    f" gradient_accumulation_steps={accumulation.every}: ranks agree in accumulate() on the ends of"
                    " windows; put the micro-batch into `with accelerator.accumulate(model):`"
                )
            accumulation.begin_alone()
            if accumulation.every > 1:
                self._say_that_nothing_accumulates()
        if self._weighted is not (weight is not None):
            self._agree_on_weights(weighted=weight is not None)
        return self.window.scale_loss(loss, weight)

    def autocast(self, handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return the context in which operations compute in the precision of the run, as inside a model."""
        policy, kind = self._components.policy, self._components.run.placed_on.type
        if handler is None:
            return autocast(policy, kind)
        compute = self._components.precision.policy.compute
        return autocast(replace(policy, compute=compute, cache=handler.cache_enabled), kind, enabled=handler.enabled)

    @property
    def stateful(self) -> list[Any]:
        """The optimizers, the schedulers and the loss scaler."""
        scaler = self._components.scaler
        return [*self._preparer.optimizers, *self._preparer.schedulers, *([] if scaler is None else [scaler])]

    @property
    def was_skipped(self) -> bool:
        """True if the last step of any prepared optimizer was skipped, as gradients had overflowed."""
        return any(optimizer.step_was_skipped for optimizer in self._preparer.optimizers)

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps were due, how many each optimizer has taken, and the newest loss with weights."""
        taken = [optimizer.steps for optimizer in self._preparer.optimizers]
        return {"steps": self._accumulation.steps, "taken": taken, "window": self.window.state_dict()}

    def problems(self, state: Any) -> list[str]:
        """Return what is wrong with a state of `state_dict`.

        Raises:
            LookupError: It lacks an entry.
            TypeError: It is no state.
        """
        whole = (
            type(state["steps"]) is int
            and len(state["taken"]) == len(self._preparer.optimizers)
            and "newest" in state["window"]
        )
        return [] if whole else ["its state is damaged"]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`, and forget a window that has begun."""
        self._accumulation.reset()
        self._accumulation.steps = state["steps"]
        for optimizer, taken in zip(self._preparer.optimizers, state["taken"], strict=True):
            optimizer.steps = taken
        self.window.load_state_dict(state["window"])

    def _agree_on_weights(self, *, weighted: bool) -> None:
        """Raise if weights cannot be added up here, or not all losses of all processes have one."""
        preparer, run = self._preparer, self._components.run
        if preparer.models:
            self._warn_of_no_loader()
        if weighted and self.joining:
            raise ValueError(
                "backward: weights are added up over all processes, and inside join_uneven_inputs some may have ended;"
                ' use ending="exact" or "pad" for loaders of unequal lengths'
            )
        if weighted and not preparer.models and run.topology.world_size > 1:
            raise ValueError("backward: a weight is shared with all processes, and no model was prepared to share with")
        if self._weighted is None and self._accumulation.due and preparer.models and not self.joining:
            votes = run.transport.all_gather_objects(weighted)
            if len(set(votes)) > 1:
                have = ", ".join(str(rank) for rank, has_weight in enumerate(votes) if has_weight)
                raise ValueError(
                    f"backward: processes {have} gave a weight and the others did not; give each loss its weight on all"
                    f" {len(votes)} processes, or on none"
                )
            self._weighted = weighted
            self._plain = not weighted and self._components.scaler is None
        elif self._weighted is not None and self._weighted != weighted:
            before = "had weights" if self._weighted else "had none"
            raise ValueError(
                f"backward: losses before this one {before}; give each its weight (1 for one that is a mean), or none"
            )

    def _warn_of_no_model(self) -> None:
        """Warn once that gradients are not exchanged, if there are processes to exchange them between."""
        if self._components.run.topology.world_size > 1:
            self._warn_once(
                "rank %d: backward() before any model was prepared: each process trains a model of its own; pass the"
                " model to accelerator.prepare",
                self._components.run.topology.rank,
            )

    def _warn_of_no_loader(self) -> None:
        """Warn once that no loader divides the data, if there are processes to divide it over."""
        ranks = self._components.run.mesh.data_size
        divided = ranks == 1 or self._preparer.loaders or self._accumulation.active is not None
        if not divided and self._components.run.topology.rank == 0:
            self._warn_once(
                "backward() before any loader was prepared: unless the script divides its data, each of the %d"
                " processes trains on all of it; pass the DataLoader to accelerator.prepare",
                ranks,
            )

    def _say_that_nothing_accumulates(self) -> None:
        if self._components.run.topology.rank == 0:
            self._warn_once(
                "gradient_accumulation_steps=%d, and backward() outside of accumulate(): each loss is divided by it,"
                " and each optimizer.step() steps; put micro-batches into `with accelerator.accumulate(model):`",
                self._accumulation.every,
            )

    def _warn_once(self, words: str, number: int) -> None:
        if words not in self._warned:
            self._warned.add(words)
            logger.warning(words, number)


def _parameters(preparer: Preparer) -> Iterator[torch.Tensor]:
    """Yield what is trained: the parameters of prepared models and optimizers."""
    for model in preparer.models:
        yield from model.parameters()
    for optimizer in preparer.optimizers:
        yield from parameters_of(optimizer)
