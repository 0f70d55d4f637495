"""The training step of the facade: micro-batches, gradients, clipping, precision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from accel_amp import AcceleratedOptimizer, LossScaler, autocast
from accel_amp.optimizer_parameters import parameters_of
from accel_data import Ending, skip_first_batches
from accel_parallel.clip import with_gradients
from accel_state import AccumulationState
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from accel.checkpoint.whole_weights import whole_state
from accel.collectives import CollectiveOps
from accel.handlers import AutocastKwargs, ProfileKwargs
from accel.preparation import Preparer
from accel.settings import Settings
from accel.step.accumulation import GradientAccumulation
from accel.step.micro_batch import MicroBatch
from accel.step.observer import StepObserver
from accel.tools.profiling import profiled

A = TypeVar("A")


class TrainingStep(CollectiveOps):
    """What a loop calls between a batch and the next."""

    settings: Settings
    _preparer: Preparer
    _gradients: GradientAccumulation
    #: who is told of each step; set on the class, before an Accelerator is made
    observer: StepObserver | None = None

    @property
    def device_placement(self) -> bool:
        """Whether prepared objects and their batches are moved to the device."""
        return self.settings.device_placement

    @property
    def split_batches(self) -> bool:
        """Whether the batch size of a loader is that of the whole job."""
        return self.settings.data.split_batches

    @property
    def even_batches(self) -> bool:
        """Whether every process gets as many batches as the others."""
        return self.settings.data.even_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether the main process reads for all."""
        return self.settings.data.dispatch_batches

    @property
    def gradient_state(self) -> AccumulationState:
        """Where this Accelerator stands in its window, and in the loader that is being iterated."""
        return self.components.accumulation

    @property
    def scaler(self) -> LossScaler | None:
        """What scales the loss in fp16; None otherwise."""
        return self.components.scaler

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches to an optimizer step; may be set at any time."""
        return self.components.accumulation.every

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self._gradients.refuse_new_windows(steps)
        self.components.accumulation.set_every(steps)
        if steps > 1:
            self.components.guard.arm()

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch ends with an optimizer step."""
        return self.components.accumulation.due

    @sync_gradients.setter
    def sync_gradients(self, due: bool) -> None:
        self.components.accumulation.sync_gradients = due

    @property
    def stateful(self) -> list[Any]:
        """What of the step has a state, besides models: prepared optimizers and schedulers, and the loss scaler."""
        scalers = [self.scaler] if self.scaler is not None else []
        return [*self._preparer.optimizers, *self._preparer.schedulers, *scalers]

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of any prepared optimizer was skipped, because gradients had overflowed."""
        return any(optimizer.step_was_skipped for optimizer in self._preparer.optimizers)

    @property
    def last_loss(self) -> float:
        """The loss of the newest window that had weights: all losses, of all processes, over all weights.

        Raises: RuntimeError when no loss had a weight.
        """
        return self._gradients.window.last_loss

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """One micro-batch; gradients travel, and optimizers step, only when a step is due.

        Raises: ValueError, when it is entered, for a model that was not prepared.
        """
        return MicroBatch(self.components, self._preparer, models, always=self.settings.accumulation.sync_each_batch)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """The context of a forward and backward whose gradients stay in this process.

        Raises: ValueError if the strategy must see every backward.
        """
        self.components.refuse("no_sync")
        return self.components.strategy.synchronising(self._preparer.container(model, "no_sync"), enabled=False)

    def local_steps(self, model: nn.Module) -> AbstractContextManager[None]:
        """The context in which gradients stay in this process, also when a step is due.

        Raises: ValueError if ranks hold parts of parameters: a step by one rank alone would need them whole.
        """
        self.components.refuse("local steps (LocalSGD)")
        return self._gradients.staying_home(self.no_sync(model))

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """The context of a backward whose gradients travel, although its forward was made under `no_sync`."""
        self.components.refuse("trigger_sync_in_backward")
        return self.components.strategy.synchronising_backward(
            self._preparer.container(model, "trigger_sync_in_backward")
        )

    @contextmanager
    def join_uneven_inputs(self, joinables: Iterable[nn.Module], even_batches: bool | None = None) -> Iterator[None]:
        """In this block processes may have unequal numbers of batches, and with `even_batches` the loaders are told so.

        A window of several micro-batches ends on all processes when the data of one of them end.

        Raises: ValueError for windows that would go on after the end (`at_epoch_end="carry"`).
        Collective: every process must enter and leave it.
        """
        with ExitStack() as changed:
            if even_batches is not None:
                changed.enter_context(self._preparer.ending(Ending.REPEAT if even_batches else Ending.UNEVEN))
            changed.enter_context(self._preparer.joined(joinables))
            changed.enter_context(self._gradients.joining())
            yield

    def backward(self, loss: torch.Tensor, *, weight: torch.Tensor | float | None = None, **kwargs: Any) -> None:
        """Adds the gradients of `loss`, as its part in the mean of the window, and scaled as the precision needs.

        With `weight`, say the number of tokens whose losses were summed up, the window is the sum of its losses over
        the sum of its weights, on all processes; without, the mean of its micro-batches.

        Raises: ValueError for a weight that cannot be, or that some losses of a window lack.
        Collective: where the gradients travel every process must call, with a weight on all or on none.
        """
        if self.observer is not None:
            self.observer.loss(loss, weight)
        if weight is None and not kwargs and self._gradients.plain and self.components.accumulation.alone:
            self._gradients.backward(loss)
            return
        if weight is not None and self._gradients.at_home:
            raise ValueError(
                "backward: inside LocalSGD gradients are not shared, and so no weights; divide the loss instead"
            )
        loss = self._gradients.scale_loss(loss, weight)
        if self.components.scaler is not None:
            loss = self.components.scaler.scale(loss)
        _refuse_unknown(kwargs)
        self._gradients.backward(loss, **kwargs)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """The context in which operations compute in the run's precision, as inside the model."""
        policy = self.components.policy
        if autocast_handler is None:
            return autocast(policy, self.device.type)
        policy = replace(policy, compute=self.components.precision.policy.compute, cache=autocast_handler.cache_enabled)
        return autocast(policy, self.device.type, enabled=autocast_handler.enabled)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """The model that was given to `prepare`; on request without its autocast, or without torch.compile."""
        return self._preparer.unwrap(model, keep_autocast=keep_fp32_wrapper, keep_compile=keep_torch_compile)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, torch.Tensor]:
        """The weights of the model, under its own names; of a sharded model whole on the main process, {} elsewhere.

        Collective: every process must call, if the model is sharded.
        """
        inner = self.unwrap_model(model, keep_torch_compile=False) if unwrap else model
        return whole_state(inner.state_dict(), self.run)

    def skip_first_batches(self, dataloader: DataLoader[A], num_batches: int = 0) -> DataLoader[A]:
        """A loader whose passes lack this process's first `num_batches` batches."""
        return skip_first_batches(dataloader, num_batches)

    def profile(self, profile_handler: ProfileKwargs | None = None) -> AbstractContextManager[torch.profiler.profile]:
        """The context that torch.profiler watches; each process writes its trace where the handler says."""
        return profiled(profile_handler or self.settings.handlers.profile, self.process_index)

    def unscale_gradients(self, optimizer: AcceleratedOptimizer | Sequence[AcceleratedOptimizer] | None = None) -> None:
        """Divides gradients by the scale of the loss, once a step; does nothing but in fp16, and within a window."""
        if self.components.scaler is None or not self.components.accumulation.due:
            return
        chosen = self._preparer.optimizers if optimizer is None else optimizer
        for prepared in [chosen] if isinstance(chosen, AcceleratedOptimizer) else chosen:
            self.components.scaler.unscale(prepared.optimizer)

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """The norm of the unscaled gradients, which are then at most `max_norm`; within a window nothing is clipped.

        Raises: ValueError when a step is due and there is no gradient.
        """
        chosen = _listed(parameters, "clip_grad_norm_")
        if self.components.accumulation.due:
            if self.components.scaler is not None:
                self.components.scaler.share_overflow(self._unscale(chosen, self.components.scaler))
            return self.components.steps.clip_norm(chosen, max_norm, kind=norm_type)
        gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
        norm = self.components.steps.total_norm(gradients, norm_type)
        return norm if self.components.scaler is None else self.components.scaler.unscaled(norm)

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Cuts each unscaled gradient to [-clip_value, clip_value]; does nothing within a window.

        Raises: ValueError when a step is due and there is no gradient.
        """
        self.components.refuse("clip_grad_value_")
        if not self.components.accumulation.due:
            return
        chosen = with_gradients(_listed(parameters, "clip_grad_value_"), "clip_grad_value_")
        if self.components.scaler is not None:
            self._unscale(chosen, self.components.scaler)
        self.components.steps.settle_gradients()
        nn.utils.clip_grad_value_(chosen, clip_value)

    def _unscale(self, parameters: list[torch.Tensor], scaler: LossScaler) -> list[Optimizer]:
        """Those of the optimizers that have one of the parameters: others may still wait for their backward."""
        wanted = set(map(id, parameters))
        chosen = [
            optimizer.optimizer
            for optimizer in self._preparer.optimizers
            if any(id(held) in wanted for held in parameters_of(optimizer))
        ]
        for optimizer in chosen:
            scaler.unscale(optimizer)
        return chosen


def _listed(parameters: torch.Tensor | Iterable[torch.Tensor], name: str) -> list[torch.Tensor]:
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    if isinstance(parameters, nn.Module):
        raise TypeError(
            f"{name} takes parameters, found the model {type(parameters).__name__}; pass model.parameters()"
        )
    return list(parameters)


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    known = ("weight", "gradient", "retain_graph", "create_graph", "inputs")
    unknown = [name for name in kwargs if name not in known]
    if unknown:
        raise TypeError(f"backward: unknown arguments {', '.join(unknown)}; expected some of {', '.join(known)}")
