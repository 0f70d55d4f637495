"""The facade: one object that a training script talks to.

It is a table of contents. Each method has its text here, and its code in one of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar, TypeVarTuple, cast, final, overload

import torch
from accel_amp import AcceleratedOptimizer, AcceleratedScheduler, LossScaler
from accel_comm import Reduction
from accel_data import Ending, skip_first_batches
from accel_parallel import FullyShardedDataParallelPlugin, ParallelismConfig, Strategy, StrategyOptions
from accel_parallel.choice import AUTO, DEEPSPEED, SHARDED
from accel_state import AcceleratorState, AccumulationState, DistributedType, Run
from accel_state.callable_bool import CallableBool
from accel_state.environ import AS_ACCELERATE, flag, process_environ
from accel_state.mesh import Axis
from accel_track import GeneralTracker
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from accel.accelerator_pickle import AcceleratorPickle
from accel.build import Components, build_components
from accel.checkpoint.checkpointer import Checkpointer
from accel.checkpoint.registry import CheckpointRegistry, LoadHook, SaveHook, add_hook
from accel.collectives import CollectiveOps
from accel.compilation import TorchDynamoPlugin
from accel.configuration import DataLoaderConfiguration, GradientAccumulationPlugin, ProjectConfiguration
from accel.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from accel.preparation import Preparer
from accel.processes import Processes
from accel.settings import Settings, resolve, with_known_names
from accel.step.clipping import GradientClipping
from accel.step.observer import StepObserver
from accel.step.training_step import TrainingStep
from accel.tools.profiling import profiled
from accel.tracking.choice import LogWith
from accel.tracking.session import PerTracker, TrackingSession

A = TypeVar("A")
More = TypeVarTuple("More")
Module = TypeVar("Module", bound=nn.Module)
P = ParamSpec("P")
R = TypeVar("R")


@final
class Accelerator:
    """The object that runs an ordinary PyTorch loop on any number of processes, devices and precisions.

    Create it before the model, on every process. Then pass models, optimizers, loaders and schedulers to `prepare`,
    and call `backward` in place of `loss.backward()`::

        project = ProjectConfiguration(project_dir="run", automatic_checkpoint_naming=True)
        accelerator = Accelerator(gradient_accumulation_steps=4, project_config=project)
        model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
        accelerator.resume()  # from the newest checkpoint in "run", if there is one
        for epoch in range(loader.iteration, epochs):
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(cross_entropy(model(inputs), targets))
                    optimizer.step()
                    optimizer.zero_grad()
            accelerator.save_state()
        right = []
        with torch.no_grad():
            for inputs, targets in test_loader:
                right.append(accelerator.gather_for_metrics(model(inputs).argmax(-1) == targets))
        accelerator.print("accuracy", torch.cat(right).float().mean())
        accelerator.end_training()

    `accel launch -n 2 train.py` runs such a script on two processes.

    The work is done by its parts: `processes`, `preparation`, `training`, `clipping`, `collectives`, `tracking` and
    `checkpoints`.

    Args:
        device_placement: Move models, optimizers and batches to the device.
        split_batches: The batch size of a loader is that of the whole job, not of one process.
        mixed_precision: "no", "bf16", "fp16" or "fp8"; None for what the launcher says.
        gradient_accumulation_steps: Micro-batches to an optimizer step (see `accumulate`); None for what the launcher
            says.
        cpu: Compute on the CPU, even if there are accelerators.
        dataloader_config: How loaders are prepared.
        rng_types: The random generators that are made equal on all processes at the start of each epoch.
        log_with: Trackers, by name ("all" for each that is installed) or as objects.
        project_dir: The folder for checkpoints and logs. It is made absolute: a later `os.chdir` does not move it.
        project_config: The folders and the names of checkpoints, in more detail.
        step_scheduler_with_optimizer: A prepared schedule advances only when its optimizer steps, by the number of
            processes (see `scheduler_once_per_step`). False: by one in each call of its `step`.
        kwargs_handlers: Options of single parts, such as `GradScalerKwargs`.
        dynamo_backend: The backend of `torch.compile`, by which `prepare` compiles models.
        dynamo_plugin: The same with all its options.
        gradient_accumulation_plugin: How micro-batches form windows, in more detail.
        fsdp_plugin: Options of the strategy "fsdp2". Passing it turns sharding on. So do `strategy="fsdp2"` and
            `accel launch --use_fsdp`, with the options of `--fsdp_config` or the defaults.
        parallelism_config: How many processes share a copy of the model, and how.
        deepspeed_plugin: Options of the strategy "deepspeed". Passing it turns DeepSpeed's engine on. So do
            `strategy="deepspeed"` and `accel launch --use_deepspeed`.
        megatron_lm_plugin: Refused: there is no Megatron-LM here.
        fp16: Short for `mixed_precision="fp16"`.
        strategy: How processes share the model. "ddp": each process has the whole model. "fsdp2": parameters, gradients
            and optimizer states are divided over the processes. "deepspeed": DeepSpeed's engine divides what its stage
            says. "spmd": one process drives all XLA devices, over which batches and parameters are divided. "auto" (or
            None) is the strategy that a plugin or the launcher turns on, "fsdp2" if `parallelism_config` divides the
            model, and otherwise "ddp". Also the name of an installed strategy, or a `Strategy` of your own.
        strategy_options: The options of the strategy that `strategy` names, such as a `FullyShardedDataParallelPlugin`
            for "fsdp2", where it does the same as `fsdp_plugin`.
        scheduler_once_per_step: By default a prepared schedule advances by the number of processes at each optimizer
            step, as in Accelerate: with 2 processes a schedule of 1000 steps ends after 500. True, or `split_batches`:
            by one.

    Raises:
        TypeError: Arguments are unknown. The error lists them, with the names that are alike.
        ValueError: An argument has no such value, or contradicts another. The message lists all.
        ImportError: A tracker in `log_with` needs a package that is not installed.
        CannotRun: The machine lacks what the strategy or the precision needs, or they do not go together.
        RunConflict: The process runs on another device or in another precision already.

    Collective:
        Every process of the job must create one, and call what is marked so in like order.
    """

    #: who is told of each step; a tool sets it on the class, before a script makes an Accelerator
    observer: ClassVar[StepObserver | None] = None

    @with_known_names
    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        rng_types: Iterable[str] | None = None,
        log_with: LogWith | Iterable[LogWith] | None = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[KwargsHandler] | None = None,
        dynamo_backend: str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        *,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        parallelism_config: ParallelismConfig | None = None,
        deepspeed_plugin: StrategyOptions | None = None,
        megatron_lm_plugin: None = None,
        fp16: bool = False,
        strategy: str | Strategy | None = AUTO,
        strategy_options: object = None,
        scheduler_once_per_step: bool = False,
    ) -> None:
        settings = resolve(process_environ(), locals())
        project = project_config or ProjectConfiguration()
        # also if a field was set after the configuration was made
        project.set_directories(project_dir if project.project_dir is None else project.project_dir)
        self._assemble(settings, build_components(settings), project, log_with)

    def _assemble(
        self,
        settings: Settings,
        components: Components,
        project: ProjectConfiguration,
        log_with: LogWith | Iterable[LogWith] | None,
    ) -> None:
        run = components.run
        named = {"deepspeed_plugin": DEEPSPEED, "fsdp_plugin": SHARDED}
        chosen = components.strategy.name
        options = {chosen: getattr(components.strategy, "plugin", None), **settings.options}  # the mesh may choose too
        run.plugins.update({name: options.get(strategy) for name, strategy in named.items()})
        self.components, self.project_configuration = components, project
        self.processes = Processes(run, settings.parallelism is not None)
        main, as_accelerate = bool(self.processes.is_main_process), flag(process_environ(), AS_ACCELERATE)
        self.tracking = TrackingSession(log_with, project, device=run.placed_on, main=main, skips_absent=as_accelerate)
        on_ready = self.tracking.prepared if self.observer is None else partial(self.observer.prepared, self)
        self.preparation = Preparer(components, settings, on_ready)
        self.training = TrainingStep(self.preparation, self.observer)
        self.clipping = GradientClipping(self.preparation)
        self.collectives = CollectiveOps(run, components.accumulation, as_accelerate=as_accelerate)
        registry = CheckpointRegistry(self.preparation, self.training)
        self.checkpoints = Checkpointer(self.processes, registry, project, self.tracking, as_accelerate=as_accelerate)

    def __getstate__(self) -> AcceleratorPickle:
        # Processes, devices and threads belong to the run of the process that reads this.
        return AcceleratorPickle.of(self.project_configuration, self.preparation)

    def __setstate__(self, copied: AcceleratorPickle) -> None:
        self._assemble(
            copied.settings, copied.components(build_components(copied.settings)), copied.project, log_with=None
        )
        copied.hand_over(self.preparation)

    # Prepare models, optimizers, loaders and schedulers

    @overload
    def prepare(self, one: A, /, *, device_placement: Sequence[bool] | None = None) -> A: ...
    @overload
    def prepare(self, *objects: *More, device_placement: Sequence[bool] | None = None) -> tuple[*More]: ...
    # mypy does not see that *Any takes every *More
    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:  # type: ignore[misc]
        """Return objects that are ready for this run, in the order given, and a single object by itself.

        Args:
            *objects: Models, optimizers, loaders and schedulers, in any order. Anything else comes back as it is.
                Prepare an optimizer together with its model, or after it, and a scheduler with its optimizer.
            device_placement: For each object, whether it is moved to the device.

        Raises:
            TypeError: The class of a loader defines an `__iter__` of its own.
            ValueError: The optimizer of a scheduler is not prepared, processes have different models or data sets, or
                the strategy cannot train an object. The message names it.

        Collective:
            Every process must call with like objects in like order.
        """
        return self.preparation.prepare(objects, device_placement)

    def prepare_model(
        self, model: Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Module:
        """Return the model on its device, in the precision of the run, in the container that exchanges its gradients.

        Args:
            model: The model.
            device_placement: Move it to the device; None for what the Accelerator was made with.
            evaluation_mode: The model is not trained here: it gets no container.

        Collective:
            Every process must call.
        """
        return cast("Module", self.preparation.model(model, place=device_placement, evaluation=evaluation_mode))

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """Return an optimizer whose `step` and `zero_grad` do nothing until a step is due (see `accumulate`).

        Args:
            optimizer: An optimizer of parameters of a prepared model.
            device_placement: Move its state to the device; None for what the Accelerator was made with.
        """
        return self.preparation.optimizer(optimizer, place=device_placement)

    def prepare_data_loader(
        self, data_loader: DataLoader[A], device_placement: bool | None = None, *, ending: Ending | str | None = None
    ) -> DataLoader[A]:
        """Return a loader that serves this process its part of the data.

        Args:
            data_loader: The loader of the whole data set.
            device_placement: Move batches to the device; None for what the Accelerator was made with.
            ending: What happens if samples do not divide evenly: "pad", "exact", "drop" or "join", which
                `DataLoaderConfiguration` explains. None for what `dataloader_config` says.

        Raises:
            TypeError: The class of the loader defines an `__iter__` of its own.
            ValueError: Settings contradict each other, or processes have different data sets.

        Collective:
            Every process must call.
        """
        return self.preparation.loader(data_loader, place=device_placement, ending=ending)

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """Return a scheduler that advances when its optimizer steps, by the number of processes.

        With 2 processes it advances by 2 at each optimizer step, as in Accelerate. With `scheduler_once_per_step=True`
        or `split_batches=True` of the Accelerator it advances by one. `ReduceLROnPlateau` advances in each call.

        Args:
            scheduler: A scheduler of torch, whose optimizer was prepared.

        Raises:
            ValueError: Its optimizer was not prepared.
        """
        return self.preparation.scheduler(scheduler)

    def skip_first_batches(self, dataloader: DataLoader[A], num_batches: int = 0) -> DataLoader[A]:
        """Return a loader whose epochs lack the first batches.

        Args:
            dataloader: A prepared loader, or any other.
            num_batches: How many batches of this process to leave out.
        """
        return skip_first_batches(dataloader, num_batches)

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """Return the model that was given to `prepare`.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Keep the autocast around its `forward`.
            keep_torch_compile: Keep what `torch.compile` made of it.
        """
        return self.preparation.unwrap(model, keep_autocast=keep_fp32_wrapper, keep_compile=keep_torch_compile)

    @property
    def settings(self) -> Settings:
        """The arguments, completed from the environment."""
        return self.preparation.settings

    @property
    def device_placement(self) -> bool:
        """True if prepared objects and their batches are moved to the device."""
        return self.settings.device_placement

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """The configuration of loaders that are prepared from now on. It may be set, and so may its fields."""
        return self.settings.data

    @dataloader_config.setter
    def dataloader_config(self, config: DataLoaderConfiguration) -> None:
        self.preparation.configure_loaders(config)

    @property
    def split_batches(self) -> bool:
        """True if the batch size of a loader is that of the whole job."""
        return self.settings.data.split_batches

    @property
    def even_batches(self) -> bool:
        """True if every process gets as many batches as the others. It may be set for later loaders."""
        return self.settings.data.even_batches

    @even_batches.setter
    def even_batches(self, even: bool) -> None:
        self.preparation.configure_loaders(replace(self.settings.data, even_batches=even))

    @property
    def dispatch_batches(self) -> bool | None:
        """True if the main process reads for all, None if each loader decides."""
        return self.settings.data.dispatch_batches

    @property
    def use_seedable_sampler(self) -> bool:
        """True if shuffled orders are drawn from a seed and the number of the epoch."""
        return self.settings.data.use_seedable_sampler

    @property
    def use_stateful_dataloader(self) -> bool:
        """True: every prepared loader has a state."""
        return True

    @property
    def non_blocking(self) -> bool:
        """True if batches are copied to the device while the step before computes."""
        return self.settings.data.non_blocking

    @property
    def rng_types(self) -> list[str]:
        """The random generators that are made equal on all processes at the start of each epoch."""
        return [kind.value for kind in self.settings.rng_types]

    @property
    def step_scheduler_with_optimizer(self) -> bool:
        """True if prepared schedules advance only when their optimizer steps, False if they do in each call."""
        return self.settings.step_scheduler_with_optimizer

    # Make a step

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """Return the context of one micro-batch: its forward, its backward, and the calls of optimizer and scheduler.

        A micro-batch is one batch of a loader. A window is the micro-batches whose gradients add up to one optimizer
        step. The step is due in the last of them: after `gradient_accumulation_steps` micro-batches, or at the end of
        the data. In the others `step` and `zero_grad` of prepared optimizers, and `step` of prepared schedulers, do
        nothing, and with "ddp" no gradients are exchanged. Call them in each micro-batch, and do not divide the loss:
        `backward` does.

        Args:
            *models: The prepared models that are trained in it.

        Raises:
            ValueError: It is entered for a model that was not prepared.
        """
        return self.training.accumulate(*models)

    def backward(self, loss: torch.Tensor, *, weight: torch.Tensor | float | None = None, **kwargs: Any) -> None:
        """Add the gradients of a loss to those of its window, scaled as the precision needs.

        A window is the micro-batches of one optimizer step (see `accumulate`). Do not divide the loss by their number:
        without weights the gradient of a window is that of the mean of its losses. With weights it is that of the sum
        of its losses over the sum of its weights, on all processes. A weight is the number of tokens, say, whose losses
        were summed up.

        Args:
            loss: The mean over the batch, or a sum with a weight.
            weight: What the sum is divided by, as a number or a tensor of one number.
            **kwargs: Arguments of `torch.Tensor.backward`, such as `retain_graph`.

        Raises:
            ValueError: The weight is no single number of at least 0, or other losses of the window have none, or it
                cannot be added up: in `LocalSGD`, `join_uneven_inputs`, or outside of `accumulate` with several
                micro-batches to a step.
            TypeError: torch's backward has no such argument.

        Shape:
            `loss` and `weight`: ().

        Collective:
            If a step is due every process must call, with a weight on all or on none.
        """
        self.training.backward(loss, weight, **kwargs)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return the context in which operations compute in the precision of the run, as inside a model.

        Args:
            autocast_handler: Other options for this block.
        """
        return self.training.autocast(autocast_handler)

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Scale the gradients down to `max_norm` if their norm is larger, and return the norm.

        The gradients are those without the loss scale of fp16. Until the last micro-batch of a window (see
        `accumulate`) nothing is clipped, as its gradients are not complete.

        Args:
            parameters: The parameters of a prepared model, or one of them.
            max_norm: The largest norm of all gradients together.
            norm_type: 2 for the Euclidean norm, `float("inf")` for the largest gradient.

        Raises:
            ValueError: A step is due, and there are no gradients.

        Shape:
            The norm: ().

        Collective:
            Every process must call, if the model is sharded.
        """
        return self.clipping.clip_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Cut each number of the unscaled gradients to the interval from `-clip_value` to `clip_value`.

        Until the last micro-batch of a window (see `accumulate`) nothing is clipped, as its gradients are not complete.

        Args:
            parameters: The parameters of a prepared model, or one of them.
            clip_value: The largest size of a number.

        Raises:
            ValueError: A step is due, and there are no gradients; or DeepSpeed's engine trains.
        """
        self.clipping.clip_value(parameters, clip_value)

    def unscale_gradients(self, optimizer: AcceleratedOptimizer | Sequence[AcceleratedOptimizer] | None = None) -> None:
        """Divide gradients by the scale of the loss, once a step, to read them before the step.

        Clipping does so by itself. Nothing happens without fp16, or before the last micro-batch of a window (see
        `accumulate`).

        Args:
            optimizer: Prepared optimizers whose gradients to divide; None for all.
        """
        self.clipping.unscale(optimizer)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context of a forward and backward whose gradients stay in this process.

        A model that is sharded by "fsdp2" exchanges them all the same.

        Args:
            model: A prepared model.

        Raises:
            ValueError: The strategy must see every backward.
        """
        return self.training.no_sync(model)

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context of a backward whose gradients are exchanged, though its forward was under `no_sync`.

        Args:
            model: A prepared model.
        """
        return self.training.trigger_sync(model)

    def local_steps(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return the context in which gradients stay in this process, also when a step is due.

        `LocalSGD` takes the mean of the models after such steps.

        Args:
            model: A prepared model.

        Raises:
            ValueError: Ranks hold parts of parameters: a step of one rank would need them whole.
        """
        return self.training.local_steps(model)

    def join_uneven_inputs(
        self, joinables: Iterable[nn.Module], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Return the context in which processes may have unequal numbers of batches.

        A window of several micro-batches ends on all processes when the data of one of them end.

        Args:
            joinables: The prepared models that are trained in the block.
            even_batches: Whether loaders repeat samples in the block; None for what they were prepared for.

        Raises:
            ValueError: A window would go on after the end of the data (`at_epoch_end="carry"`).

        Collective:
            Every process must enter and leave it.
        """
        return self.training.join_uneven_inputs(joinables, even_batches)

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number of micro-batches to an optimizer step. It may be set at any time."""
        return self.components.accumulation.every

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self.training.set_every(steps)

    @property
    def gradient_state(self) -> AccumulationState:
        """The position of this Accelerator in its window, and in the loader that is being iterated."""
        return self.components.accumulation

    @property
    def sync_gradients(self) -> bool:
        """True if the current micro-batch ends with an optimizer step.

        After the block of `accumulate` it stays as it is until the next `accumulate`, or a `backward` outside of one.
        """
        return self.components.accumulation.due

    @sync_gradients.setter
    def sync_gradients(self, due: bool) -> None:
        self.components.accumulation.sync_gradients = due

    @property
    def step(self) -> int:
        """The number of the current micro-batch in its window (see `accumulate`), from 1.

        It may be set to 0, to begin a window.
        """
        return self.components.accumulation.position

    @step.setter
    def step(self, position: int) -> None:
        self.training.set_position(position)

    @property
    def last_loss(self) -> float:
        """The loss of the newest window with weights: all losses of all processes over all weights.

        Raises:
            RuntimeError: No loss had a weight.
        """
        return self.training.window.last_loss

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """True if the last step of any prepared optimizer was skipped, as gradients had overflowed."""
        return self.training.was_skipped

    @property
    def scaler(self) -> LossScaler | None:
        """The scaler of the loss in fp16, or None."""
        return self.components.scaler

    @property
    def stateful(self) -> list[Any]:
        """The optimizers, the schedulers and the loss scaler: what has a state besides models and loaders."""
        return self.training.stateful

    # Put results together

    def gather(self, tensor: Any) -> Any:
        """Return the nested tensors of all processes, joined along dim 0.

        Args:
            tensor: A tensor, or lists, tuples and dictionaries of tensors. Only their lengths along dim 0 may differ
                between processes.

        Shape:
            With P processes: (n, ...) becomes (P * n, ...), or the sum of all n if they differ; () becomes (P,).

        Collective:
            Every process must call.
        """
        return self.collectives.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return what `gather` does, without the samples that were repeated to fill the last batch of the loader.

        Call it in the loop over a prepared loader: then the results have each sample that the loader serves exactly
        once. By default `prepare` repeats samples, so that the last batches of all processes are full (`ending="pad"`).
        With `ending="exact"` they are shorter instead, and may differ in length between processes.

        Args:
            input_data: Nested tensors with an entry for each sample along dim 0, whose lengths may differ between
                processes, or objects that can be pickled, in a list with one for each sample.
            use_gather_object: Treat `input_data` as a list of objects, even if they are tensors.

        Shape:
            As for `gather`; fewer rows for the last batch of a loader, if samples were repeated.

        Collective:
            Every process must call.
        """
        return self.collectives.gather_for_metrics(input_data, use_gather_object=use_gather_object)

    def reduce(self, tensor: Any, reduction: Reduction = "sum", scale: float = 1.0) -> Any:
        """Combine the nested tensors of all processes, element by element.

        Args:
            tensor: Nested tensors, of the same shapes on all processes.
            reduction: "sum", "mean" or "none".
            scale: The number that the result is multiplied by.

        Shape:
            As `tensor`.

        Collective:
            Every process must call.
        """
        return self.collectives.reduce(tensor, reduction, scale=scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Return nested tensors that are as long along a dimension as those of the longest process.

        Args:
            tensor: Nested tensors, whose shapes may differ along `dim`.
            dim: The dimension that becomes longer.
            pad_index: The number to fill with.
            pad_first: Fill at the beginning, not at the end.

        Shape:
            As `tensor`, with the largest length of any process along `dim`.

        Collective:
            Every process must call.
        """
        return self.collectives.pad(tensor, dim=dim, value=pad_index, first=pad_first)

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        """Return a context with the contiguous part of some inputs that belongs to this process.

        Args:
            inputs: A list, a tuple, a tensor, a dictionary of these, or a Dataset.
            apply_padding: Repeat the last entry, so that all processes have equally many.
        """
        return self.processes.split_between_processes(inputs, apply_padding)

    def set_trigger(self) -> None:
        """Raise a flag, for `check_trigger` to see on every process: so one process can decide for all."""
        self.collectives.set_trigger()

    def check_trigger(self) -> bool:
        """Return True if any process has raised its flag since the last call, and lower all flags.

        Collective:
            Every process must call.
        """
        return self.collectives.check_trigger()

    # Tell processes apart

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.processes.device

    @property
    def distributed_type(self) -> DistributedType:
        """The kind of device of several processes, such as "MULTI_CPU" or "MULTI_GPU", or "NO" for one process.

        It does not say how processes share the model, and is never "FSDP" or "DEEPSPEED". Ask `is_fsdp2` whether it is
        sharded, and `deepspeed_plugin` whether DeepSpeed's engine trains. On XLA devices it is always "XLA".
        """
        return self.processes.distributed_type

    @property
    def num_processes(self) -> int:
        """The number of processes of the job."""
        return self.processes.num_processes

    @property
    def process_index(self) -> int:
        """The rank of this process among all."""
        return self.processes.process_index

    @property
    def local_process_index(self) -> int:
        """The rank of this process on its machine."""
        return self.processes.local_process_index

    @property
    def use_distributed(self) -> bool:
        """True if the job has several processes."""
        return self.processes.use_distributed

    @property
    def multi_device(self) -> bool:
        """True if several processes each have an accelerator."""
        return self.use_distributed and self.device.type != "cpu"

    @property
    def is_main_process(self) -> CallableBool:
        """True on one process of the job. It may also be called."""
        return self.processes.is_main_process

    @property
    def is_local_main_process(self) -> CallableBool:
        """True on one process of each machine. It may also be called."""
        return self.processes.is_local_main_process

    @property
    def is_last_process(self) -> CallableBool:
        """True on the process with the highest rank. It may also be called."""
        return self.processes.is_last_process

    def wait_for_everyone(self) -> None:
        """Wait until every process has called.

        Collective:
            Every process must call.
        """
        self.processes.wait_for_everyone()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print once on each machine.

        Args:
            *args: What Python's `print` takes.
            **kwargs: Its options.
        """
        self.processes.print(*args, **kwargs)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that the main process runs before the others, who wait as long as it lives.

        Raises:
            PeerFailed: The main process fails or ends in the block; raised on the others.

        Collective:
            Every process must enter.
        """
        return self.processes.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that the main process of each machine runs before the others there.

        Raises:
            PeerFailed: The main process of the machine fails or ends in the block; raised on the others there.

        Collective:
            Every process must enter.
        """
        return self.processes.local_main_process_first()

    def on_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that runs on one process of the job, and returns None on the others.

        Args:
            function: Any function. What it returns is returned on the process that runs it.
        """
        return self.processes.on_main_process(function)

    def on_local_main_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that runs on one process of each machine, and returns None on the others.

        Args:
            function: Any function. What it returns is returned on the process that runs it.
        """
        return self.processes.on_local_main_process(function)

    def on_last_process(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Return a function that runs on the process with the highest rank, and returns None on the others.

        Args:
            function: Any function. What it returns is returned on the process that runs it.
        """
        return self.processes.on_last_process(function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Any:
        """Return a function that runs on the process with this rank, and returns None on the others.

        Args:
            function: Any function; leave it out to decorate one.
            process_index: The rank; 0 if left out.
        """
        return self.processes.on_process(function, process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Return a function that runs on the process with this rank on each machine, and returns None on the others.

        Args:
            function: Any function; leave it out to decorate one.
            local_process_index: The rank on the machine; 0 if left out.
        """
        return self.processes.on_local_process(function, local_process_index)

    # Track metrics

    def init_trackers(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: PerTracker | None = None
    ) -> None:
        """Start the trackers, and record what describes the run.

        Trackers of a checkpoint that was loaded resume their runs; after `load_state`, those that have not ended.

        Args:
            project_name: The name of the project, as the tracker's own page shows it.
            config: Numbers and texts that describe the run.
            init_kwargs: More arguments, by the name of the tracker: `{"wandb": {"tags": ["first"]}}`.

        Raises:
            OSError: A record cannot be written; a tracker may raise other errors.
        """
        self.tracking.start(project_name, config, init_kwargs)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: PerTracker | None = None,
        *,
        tokens: Any = None,
    ) -> None:
        """Record values of a step, without a wait for a device or a tracker.

        Tensors are recorded as they are now, whatever later steps do to them.

        Args:
            values: Numbers, texts, or tensors of one number, by name.
            step: The number of the step; None for the one after the last.
            log_kwargs: More arguments, by the name of the tracker.
            tokens: How many tokens all processes have trained on since the last call with it. Then
                `tokens_per_second`, `step_time_s` and `data_wait_s` are recorded too, from the second such call on.

        Raises:
            TypeError: A tensor is divided over ranks, the step is no whole number, or `log_kwargs` is no dictionary of
                dictionaries.
        """
        self.tracking.log(values, step, log_kwargs, tokens)

    def log_images(
        self, values: Mapping[str, Sequence[Any]], step: int | None = None, log_kwargs: PerTracker | None = None
    ) -> None:
        """Record images.

        Args:
            values: Lists of images, by name.
            step: The number of the step; None for the one after the last.
            log_kwargs: More arguments, by the name of the tracker.

        Shape:
            Each image: (height, width, channels), or an image of Pillow.
        """
        self.tracking.call("log_images", {"values": values, "step": step}, log_kwargs)

    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        log_kwargs: PerTracker | None = None,
    ) -> None:
        """Record a table.

        Args:
            table_name: The name of the table.
            columns: The names of the columns.
            data: The rows.
            dataframe: A dataframe of pandas, in the place of `columns` and `data`.
            step: The number of the step; None for the one after the last.
            log_kwargs: More arguments, by the name of the tracker.
        """
        self.tracking.call(
            "log_table",
            {"table_name": table_name, "columns": columns, "data": data, "dataframe": dataframe, "step": step},
            log_kwargs,
        )

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Wait until a tracker has all that was logged so far, and return it.

        If only the main process has it, the other processes get a tracker that does nothing.

        Args:
            name: The name of a tracker that was started.
            unwrap: Return the object of its client, such as a run of wandb.

        Raises:
            ValueError: No such tracker was started.
        """
        return self.tracking.find(name, unwrap=unwrap)

    @property
    def log_with(self) -> list[LogWith]:
        """The trackers that were asked for, by name or as objects."""
        return self.tracking.chosen

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that were started on this process."""
        return self.tracking.trackers

    # Save, load and stop

    def register_for_checkpointing(self, *objects: Any, **named: Any) -> None:
        """Save and load objects with everything else.

        The state of the main process is saved, and every process loads it. Register before `resume` or `load_state`: a
        checkpoint of other objects is refused.

        Args:
            *objects: Objects with `state_dict` and `load_state_dict`, to save under the names of their classes.
            **named: The same, under names of your own.

        Raises:
            ValueError: Objects lack these methods, or names are taken. The message lists all.
        """
        self.checkpoints.registry.register(objects, named)

    def save_state(
        self,
        output_dir: str | Path | None = None,
        safe_serialization: bool = True,
        *,
        asynchronous: bool = False,
        max_shard_size: int | str = "10GB",
    ) -> Path:
        """Write a checkpoint of all that was prepared or registered, and return its folder.

        The folder is there whole, or not at all. If it cannot be written, what was there before stays.

        Call it after the block of `accumulate`, where `sync_gradients` is true. Where it is false, the checkpoint is
        that of the last optimizer step: batches since then are served again after a resume, and registered counters are
        ahead by them. In the block, before a step that is due, the step is lost to a resume. To save by the clock, let
        one process decide for all: it calls `set_trigger`, and every process calls `save_state` if `check_trigger`
        returns True.

        Args:
            output_dir: The folder; without it, the next `checkpoint_N` of the project. For that, pass
                `ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True)` to the Accelerator.
            safe_serialization: Has no effect, as checkpoints are safetensors; accepted so that scripts for Accelerate
                run.
            asynchronous: Return when everything is copied in memory, and write while training goes on. Errors of the
                writing come with the next call, or with `wait_for_checkpoint`.
            max_shard_size: The largest file of weights, in bytes or as text such as "5GB".

        Raises:
            CheckpointError: It could not be written; raised on every process.
            ValueError: There is no folder.

        Collective:
            Every process must call.
        """
        return self.checkpoints.save(
            output_dir, safe_serialization, asynchronous=asynchronous, max_shard_size=max_shard_size
        )

    def wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint that is being written in the background is on the disk.

        Raises:
            CheckpointError: It could not be written; raised on every process.

        Collective:
            Every process must call.
        """
        self.checkpoints.wait()

    def load_state(
        self,
        input_dir: str | Path | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        map_location: str | None = None,
    ) -> Path:
        """Restore everything from a checkpoint, and return its folder.

        More or fewer processes may have written it. Its files are verified, and compared with what was prepared and
        registered, before anything is changed.

        Args:
            input_dir: The folder; without it, the newest whole checkpoint of the project.
            load_kwargs: Has no effect; accepted so that scripts for Accelerate run.
            map_location: Has no effect, as tensors go to where the objects are; accepted so that scripts for Accelerate
                run.

        Raises:
            CheckpointError: There is no whole checkpoint, or it has other models, objects or shapes than were prepared
                and registered. The message lists all differences, and is raised on every process.
            TypeError: `map_location`, here or in `load_kwargs`, is not None, "cpu" or "on_device".

        Collective:
            Every process must call.
        """
        return self.checkpoints.load(input_dir, map_location=(load_kwargs or {}).get("map_location", map_location))

    def resume(self) -> Path | None:
        """Restore everything from the newest checkpoint of the project, if there is one.

        Everything is: prepared models, optimizers, schedulers and loaders, the loss scaler, registered objects, the
        random states, and the runs of trackers. Call it when all are prepared and registered, before the loop. It looks
        in `checkpoints` in `project_dir`, for the folders that `save_state()` has named there.

        `loader.iteration` of a prepared loader is the number of its epoch: begin with it, as in
        `for epoch in range(loader.iteration, epochs)`. The first loop over the loader serves only the batches that were
        left of this epoch, without `skip_first_batches`, and an `enumerate` of it starts at 0.

        Returns:
            The folder of the checkpoint, or None if there is none yet.

        Raises:
            ValueError: There is no `project_dir`.
            CheckpointError: As for `load_state`.

        Collective:
            Every process must call.
        """
        return self.checkpoints.resume()

    def stop_requested(self) -> bool:
        """Return True if a signal has asked any process of the job to stop: then call `save_and_stop`.

        By default the first call begins to note SIGTERM and SIGUSR1. Before it, and in a script that never calls, they
        end the process. With `stop_signals` of the `ProjectConfiguration` these are noted instead, from the time that
        the Accelerator is made. A signal that comes again, more than a second later, ends the process.

        Collective:
            Every process must call, after the same optimizer step.
        """
        return self.checkpoints.signals.requested()

    def save_and_stop(self, output_dir: str | Path | None = None) -> NoReturn:
        """Write a checkpoint, and end the process with exit code 75.

        To resume, run the same command again, with a script that calls `resume`.

        Args:
            output_dir: The folder; without it, the next `checkpoint_N` of the project, where `resume` finds it. For
                that the project needs `automatic_checkpoint_naming`, as in `save_state`.

        Raises:
            SystemExit: The checkpoint was written.
            CheckpointError: It was not; raised on every process.

        Collective:
            Every process must call.
        """
        self.checkpoints.save_and_stop(output_dir)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """Call a hook on every process before a checkpoint is written.

        What the hook writes into the folder becomes part of the checkpoint. It may take weights out of the list, to
        write them itself.

        Args:
            hook: A function of the models, their weights, and the folder.

        Returns:
            A handle, whose `remove` takes the hook away.
        """
        return add_hook(self.checkpoints.registry.save_hooks, hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """Call a hook on every process before a checkpoint is loaded.

        The hook may take models out of the list, to load them itself.

        Args:
            hook: A function of the models and the folder.

        Returns:
            A handle, whose `remove` takes the hook away.
        """
        return add_hook(self.checkpoints.registry.load_hooks, hook)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> Path | None:
        """Write the weights of a model, under its own names.

        Args:
            model: A prepared model, or one that never was.
            save_directory: The folder for the files. It is made if it is missing.
            max_shard_size: The largest file, in bytes or as text such as "5GB". More weights go into further files with
                an index.
            safe_serialization: Write safetensors; otherwise by `torch.save`.

        Returns:
            The path to open the weights by on the main process; None on the others.

        Collective:
            Every process must call, if the model is sharded. The main process gathers it piece by piece.
        """
        return self.checkpoints.save_model(model, save_directory, max_shard_size, safe_serialization)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, torch.Tensor]:
        """Return the weights of a model, whole, under its own names.

        Args:
            model: A prepared model.
            unwrap: Take the names of the model itself, not those of its containers.

        Returns:
            The weights; of a sharded model on the main process, and {} on the others.

        Collective:
            Every process must call, if the model is sharded.
        """
        return self.checkpoints.weights_of(model, unwrap=unwrap)

    def save(self, obj: Any, f: str | Path, safe_serialization: bool = False) -> None:
        """Write an object on the main process.

        Args:
            obj: Anything that `torch.save` takes.
            f: The path of the file.
            safe_serialization: Write a mapping of tensors as safetensors.
        """
        self.checkpoints.save_object(obj, f, safe_serialization=safe_serialization)

    @property
    def project_dir(self) -> str | Path | None:
        """The folder of the project.

        `resume` needs it. `save_state` without a folder also needs a `project_config` with
        `automatic_checkpoint_naming`.
        """
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | Path | None:
        """The folder of the logs of the project."""
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        return self.checkpoints.next_number

    @property
    def should_save_model(self) -> bool:
        """True if this process writes weights: of models that are whole, one process of each machine."""
        return self.settings.parallelism is not None or bool(self.is_local_main_process)

    # Look at the run

    def profile(self, profile_handler: ProfileKwargs | None = None) -> AbstractContextManager[torch.profiler.profile]:
        """Return a context that `torch.profiler` watches. Each process writes its trace where the handler says.

        Args:
            profile_handler: What is recorded, and where; None for that of the Accelerator.
        """
        return profiled(profile_handler or self.profile_handler, self.process_index)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Return True if a device map has put parts of a model on several devices, so that it cannot be prepared.

        Args:
            model: A model that is not prepared.
        """
        return any(len(set((vars(part).get("hf_device_map") or {}).values())) > 1 for part in model.modules())

    @property
    def state(self) -> AcceleratorState:
        """The view of the run that every Accelerator of the process shares."""
        return AcceleratorState()

    @property
    def run(self) -> Run:
        """The facts that are settled for this process: its rank, device, transport and precision."""
        return self.components.run

    @property
    def mixed_precision(self) -> str:
        """The name of the precision."""
        return self.components.precision.name

    @property
    def native_amp(self) -> bool:
        """True if models compute in half precision by `torch.autocast`."""
        return self.components.policy.compute is not None

    @property
    def fp8_enabled(self) -> bool:
        """True if linear layers compute in float8."""
        return self.mixed_precision == "fp8"

    @property
    def is_fsdp2(self) -> bool:
        """True if torch's `fully_shard` shards parameters."""
        return self.components.strategy.is_fsdp2

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """The sizes of the mesh that the script or its launcher asks for, or None if neither does.

        A program for Accelerate finds processes that share sequences in `tp_size`, as they have the same batches.
        """
        return self.settings.parallelism_as_counted

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """The mesh of the processes, as torch has it, or None if nothing is sharded or divided."""
        return self.run.device_mesh

    @property
    def data_parallel_rank(self) -> int:
        """The position of this process among whole copies of the model, each of which may be sharded.

        Raises:
            RuntimeError: There is no `ParallelismConfig`.
        """
        return self.processes.rank_on(Axis.REPLICATE)

    @property
    def data_parallel_shard_rank(self) -> int:
        """The position of this process among those that share one copy of the model.

        Raises:
            RuntimeError: There is no `ParallelismConfig`.
        """
        return self.processes.rank_on(Axis.SHARD)

    @property
    def tensor_parallel_rank(self) -> int:
        """The position of this process among those that divide each layer.

        Raises:
            RuntimeError: There is no `ParallelismConfig`.
        """
        return self.processes.rank_on(Axis.TENSOR)

    @property
    def deepspeed_plugin(self) -> StrategyOptions | None:
        """The options by which DeepSpeed's engine trains, or None without the engine."""
        return self.settings.options.get(DEEPSPEED)

    @property
    def autocast_handler(self) -> AutocastKwargs:
        """The options of `torch.autocast`."""
        return self.settings.handlers.autocast

    @property
    def scaler_handler(self) -> GradScalerKwargs:
        """The options of the loss scaler."""
        return self.settings.handlers.scaler

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs:
        """The options of `DistributedDataParallel`."""
        return self.settings.handlers.ddp

    @property
    def init_handler(self) -> InitProcessGroupKwargs:
        """The options of the process group."""
        return self.settings.handlers.group

    @property
    def profile_handler(self) -> ProfileKwargs:
        """The options of `torch.profiler`."""
        return self.settings.handlers.profile

    # Libraries read and change these lists in place of asking for what was prepared.

    @property
    def _models(self) -> list[nn.Module]:
        return self.preparation.models

    @property
    def _optimizers(self) -> list[AcceleratedOptimizer]:
        return self.preparation.optimizers

    @property
    def _schedulers(self) -> list[AcceleratedScheduler]:
        return self.preparation.schedulers

    @property
    def _dataloaders(self) -> list[DataLoader[Any]]:
        return self.preparation.loaders

    # End

    def end_training(self) -> None:
        """Wait until a checkpoint that is being written is on the disk, and end the trackers with all that was logged.

        It writes no checkpoint of its own.

        Raises:
            CheckpointError: A checkpoint could not be written; raised on every process.

        Collective:
            Every process must call.
        """
        self.checkpoints.end()

    def free_memory(self, *objects: Any) -> list[None]:
        """Forget what was prepared. Afterwards the same Accelerator may prepare other objects.

        Args:
            *objects: What to forget: assign the result to the same names.

        Returns:
            A None for each object.
        """
        return self.training.free(objects)

    clear = free_memory
