"""The facade: one object that a training script talks to."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, final, overload

import torch
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler
from accel_checkpoint import save_object, save_weights
from accel_data import Ending, skip_first_batches
from accel_parallel import Strategy
from accel_state import AcceleratorState, Run
from accel_state.environ import process_environ
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from accel.build import build_components
from accel.checkpoint.checkpointer import Checkpoints
from accel.compilation import TorchDynamoPlugin
from accel.configuration import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
from accel.handlers import KwargsHandler, ProfileKwargs
from accel.preparation import Preparer
from accel.settings import AUTO, resolve
from accel.step.accumulation import GradientAccumulation
from accel.tools.profiling import profiled

A = TypeVar("A")
More = TypeVarTuple("More")
Module = TypeVar("Module", bound=nn.Module)


@final
class Accelerator(Checkpoints):
    """Runs an ordinary PyTorch loop on any number of processes, devices and precisions.

    Collective: every process of the job must create one, and call what is marked so in like order.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        rng_types: Iterable[str] | None = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[KwargsHandler] | None = None,
        dynamo_backend: str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        *,
        fp16: bool = False,
        strategy: str | Strategy = AUTO,
        scheduler_once_per_step: bool = False,
    ) -> None:
        self.settings = resolve(
            process_environ(),
            device_placement=device_placement,
            cpu=cpu,
            fp16=fp16,
            mixed_precision=mixed_precision,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_accumulation_plugin=gradient_accumulation_plugin,
            kwargs_handlers=kwargs_handlers,
            dynamo_backend=dynamo_backend,
            dynamo_plugin=dynamo_plugin,
            split_batches=split_batches,
            dataloader_config=dataloader_config,
            rng_types=rng_types,
            strategy=strategy,
        )
        self.components = build_components(self.settings)
        self._preparer = Preparer(
            self.components,
            self.settings,
            device_placement=device_placement,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            scheduler_once_per_step=scheduler_once_per_step,
            on_ready=None if self.observer is None else partial(self.observer.prepared, self),
        )
        self._gradients = GradientAccumulation(self.components, self._preparer)
        self._prepare_checkpoints(project_config or ProjectConfiguration(), project_dir)

    @property
    def run(self) -> Run:
        """What is settled for this process; shared with every other Accelerator."""
        return self.components.run

    @property
    def state(self) -> AcceleratorState:
        """The view of the run that every Accelerator shares."""
        return AcceleratorState()

    @property
    def mixed_precision(self) -> str:
        """The name of the precision."""
        return self.components.precision.name

    @property
    def device_placement(self) -> bool:
        """Whether prepared objects and their batches are moved to the device."""
        return self._preparer.device_placement

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

    @overload
    def prepare(self, one: A, /, *, device_placement: Sequence[bool] | None = None) -> A: ...
    @overload
    def prepare(self, *objects: *More, device_placement: Sequence[bool] | None = None) -> tuple[*More]: ...
    # mypy does not see that *Any takes every *More
    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:  # type: ignore[misc]
        """The objects, ready for this run, in the order given; one object comes back by itself.

        Models, optimizers, loaders and schedulers are prepared; anything else comes back as it is.

        Raises: TypeError or ValueError for what cannot be prepared, in words.
        Collective: every process must call with like objects in like order.
        """
        if not objects:
            raise ValueError("prepare() needs at least one object: a model, an optimizer, a DataLoader or a scheduler")
        ready = self._preparer.prepare(objects, device_placement)
        return ready[0] if len(ready) == 1 else tuple(ready)

    def prepare_model(
        self, model: Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Module:
        """The model, ready; without the container that exchanges gradients in `evaluation_mode`. Collective."""
        return self._preparer.model(model, place=device_placement, evaluation=evaluation_mode)  # type: ignore[return-value]

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """The optimizer, ready."""
        return self._preparer.optimizer(optimizer, place=device_placement)

    def prepare_data_loader(
        self, data_loader: DataLoader[A], device_placement: bool | None = None, *, ending: Ending | str | None = None
    ) -> DataLoader[A]:
        """The loader of this process. Collective."""
        return self._preparer.loader(data_loader, place=device_placement, ending=ending)

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """The scheduler, following its prepared optimizer."""
        return self._preparer.scheduler(scheduler)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """The model that was given to `prepare`; on request without its autocast, or without torch.compile."""
        return self._preparer.unwrap(model, keep_autocast=keep_fp32_wrapper, keep_compile=keep_torch_compile)

    def skip_first_batches(self, dataloader: DataLoader[A], num_batches: int = 0) -> DataLoader[A]:
        """A loader whose passes lack this process's first `num_batches` batches."""
        return skip_first_batches(dataloader, num_batches)

    def profile(self, profile_handler: ProfileKwargs | None = None) -> AbstractContextManager[torch.profiler.profile]:
        """The context that torch.profiler watches; each process writes its trace where the handler says."""
        return profiled(profile_handler or self.settings.handlers.profile, self.process_index)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, torch.Tensor]:
        """The weights of the model, under the names that the model itself gives them."""
        return (self.unwrap_model(model, keep_torch_compile=False) if unwrap else model).state_dict()

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> Path | None:
        """Writes the weights on the main process: the path to open them by; None on the others."""
        if not self.is_main_process:
            return None
        state = self.get_state_dict(model)
        return save_weights(state, save_directory, max_shard_size=max_shard_size, safe_serialization=safe_serialization)

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Writes an object on the main process: by torch.save, or a mapping of tensors as safetensors."""
        if self.is_main_process:
            save_object(obj, f, safe_serialization=safe_serialization)

    def free_memory(self, *objects: Any) -> list[None]:
        """Forgets what was prepared and returns a None for each object, to assign to its name."""
        self._preparer.forget()
        self._gradients = GradientAccumulation(self.components, self._preparer)
        self.components.accumulation.reset()
        nothing: list[None] = [None] * len(objects)
        del objects
        gc.collect()
        self.run.device.release_memory()
        return nothing

    clear = free_memory
